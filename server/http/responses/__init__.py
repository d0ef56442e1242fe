"""The routes of OpenAI's Responses and Conversations API: JSON, server-sent events, WebSocket, and what is stored."""
