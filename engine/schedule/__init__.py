"""Host logic without JAX that decides which requests run in the next step and commits what it sampled."""
