"""The bodies and queries of OpenAI's Responses and Conversations API, checked field by field."""
