"""Logits processors: the features that change logits before a token is drawn, one file each."""
