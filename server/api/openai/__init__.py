"""OpenAI's completions and chat completions: what clients may send, and how answers are written."""
