"""Quantised checkpoints of the Hub: safetensors folders whose matrices are packed integers or floats of 8 bits."""
