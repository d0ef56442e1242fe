"""Parts of the engine measured in this process, without a server, and the tools for that."""
