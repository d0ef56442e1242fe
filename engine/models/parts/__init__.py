"""What architectures are made of: the interface of a model, its layers, and what configurations say alike."""
