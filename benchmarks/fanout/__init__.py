"""The cost of streaming: our server and a FastAPI server over an engine that computes nothing."""
