"""What a request asks of the sampler, as the host knows it: parameters, rows, packed sets; without JAX."""
