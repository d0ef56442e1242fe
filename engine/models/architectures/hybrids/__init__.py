"""Decoders with state spaces, or with state spaces and attention, one file each."""
