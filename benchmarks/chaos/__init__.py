"""Hostile and broken clients during well-behaved streams, cut and killed streams, and leak checks."""
