"""Mixtures with shared experts and layers without any, and those of them that have latent attention."""
