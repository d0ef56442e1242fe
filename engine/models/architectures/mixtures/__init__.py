"""Decoders with experts, one file each."""
