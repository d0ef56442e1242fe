"""Encoders of texts, one file each: each token sees its whole text, which becomes an embedding or scores."""
