"""Decoders whose pages hold latents instead of keys and values, one file each."""
