"""Writes streamed answers to clients: as server-sent events or WebSocket messages, live or resumed."""
