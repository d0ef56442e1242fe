"""Hostile, broken and unlucky clients beside well-behaved ones, and what is left of the server afterwards."""
