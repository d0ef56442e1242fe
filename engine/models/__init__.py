"""Model architectures as pure functions over a parameter tree."""
