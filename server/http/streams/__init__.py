"""How answers are written to their sockets: as server-sent events, as messages, and once more to readers that come back."""
