"""Tools of benchmarks that drive parts of the engine without a server."""
