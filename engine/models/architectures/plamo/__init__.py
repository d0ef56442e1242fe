"""The architectures of PLaMo."""
