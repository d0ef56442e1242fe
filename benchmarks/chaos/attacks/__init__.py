"""The attacks, by what they send."""
