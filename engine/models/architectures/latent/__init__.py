"""Architectures with latent attention: pages hold what keys and values are made of."""
