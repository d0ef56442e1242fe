"""Decoders with experts in every layer, one file each."""
