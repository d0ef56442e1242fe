"""Weights: from the tensors of a model file to the parameter tree in memory."""
