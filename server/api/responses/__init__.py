"""OpenAI's Responses API: request models, items, and the writer of responses and their events."""
