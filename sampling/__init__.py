"""Sampling: the parameters of a request, and the pure functions over logits that implement them."""
