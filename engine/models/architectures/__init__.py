"""The architectures, one file each: what a configuration says, the tensors by their names, the forward pass."""
