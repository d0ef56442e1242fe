"""Tools that a model may call in the terminal's chat: those of MCP servers, a calculator and the time."""
