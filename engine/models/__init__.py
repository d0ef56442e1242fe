"""Model architectures, one file each, and the registry that finds the one a model file names."""
