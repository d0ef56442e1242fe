"""The route of Anthropic's Messages: calls, events, errors."""
