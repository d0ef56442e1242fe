"""The playground measured: how smoothly it draws what a server streams, and what watching the engine costs the server."""
