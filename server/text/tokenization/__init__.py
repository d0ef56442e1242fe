"""Vocabularies: what a model's files say of its tokens, and how a text becomes token ids."""
