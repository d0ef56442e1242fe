"""Sampling on the host, without JAX: parameters, the rows of a step, packed sets of tokens."""
