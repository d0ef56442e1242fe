"""What architectures share: the interface of a model, its layers, and readers of configurations."""
