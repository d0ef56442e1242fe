"""The architectures of Phi."""
