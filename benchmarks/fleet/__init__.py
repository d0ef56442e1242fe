"""Several servers behind a router that others have written: what works, what it costs, and how it would scale."""
