"""The portable bodies: everything in XLA, for every device."""
