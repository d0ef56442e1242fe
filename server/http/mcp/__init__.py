"""MCP servers that the operator names for the clients of this server, and the requests that are passed to them."""
