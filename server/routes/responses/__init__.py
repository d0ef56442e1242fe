"""OpenAI's responses, free of HTTP: how items become messages and answers items, events, and what is kept of them."""
