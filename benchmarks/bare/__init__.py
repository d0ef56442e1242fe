"""Parts of the engine driven without a server."""
