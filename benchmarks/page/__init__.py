"""The playground measured: how smoothly it draws what streams, and what it costs a server to be watched."""
