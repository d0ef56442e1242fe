"""The asyncio side: text, JSON, HTTP, SSE, WebSocket and the command line."""
