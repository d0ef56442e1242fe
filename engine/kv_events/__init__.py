"""KV events: publishes over ZeroMQ, in vLLM's format, which prefixes this engine's pages remember."""
