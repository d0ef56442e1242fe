"""Tools of benchmarks that start servers, put load on them, and measure them from outside."""
