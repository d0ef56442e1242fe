"""The playground: how smoothly it draws what streams, and what watching an engine costs its server."""
