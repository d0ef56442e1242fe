"""What the router remembers: prefixes that replicas have cached, resumable streams, adapters loaded at run time."""
