"""Vocabularies: reading them from model files, and splitting texts into their tokens."""
