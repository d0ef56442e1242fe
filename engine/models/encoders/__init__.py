"""Encoders of pictures, whose outputs are embeddings in the place of tokens."""
