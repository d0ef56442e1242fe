"""OpenAI's completions and chat completions, over HTTP and WebSocket: request models and response writers."""
