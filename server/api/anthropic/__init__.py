"""Anthropic's Messages API: request models, content blocks, response writers."""
