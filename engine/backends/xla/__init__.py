"""The portable backends: everything in XLA, for every device."""
