"""Decoders that see pictures, one file each, and what they share."""
