"""Mixtures with experts that every token goes through beside those that it picks."""
