"""Output parsers: reasoning and tool calls in an output's text, parsed while it streams."""
