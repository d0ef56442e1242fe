"""Architectures whose layers are Llama's, by other names or with other constants."""
