"""Models: opening a model file, the registry of architectures, and the memory that a model takes."""
