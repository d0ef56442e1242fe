"""How streamed answers are written to sockets: as server-sent events, as messages, and again to readers that return."""
