"""Sampling: what a request may ask of its next token, and the pure functions over logits that honour it."""
