"""The same engine for Python programs, without a server."""
