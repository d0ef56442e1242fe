"""The architectures, one file each: configuration, tensors by their names, forward pass."""
