"""The transport: connections, TLS handshakes, WebSockets, whole and streamed responses, and write timeouts."""
