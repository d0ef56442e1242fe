"""The portable backend: everything in XLA, for every device."""
