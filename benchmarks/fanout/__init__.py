"""What a streamed token costs between an engine that emits at once and the socket, beside FastAPI doing the same."""
