"""From a path to an open model: the registry of architectures, and the opening of files."""
