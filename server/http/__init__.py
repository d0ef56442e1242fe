"""HTTP with aiohttp: the application, its middleware, and how answers are written to sockets."""
