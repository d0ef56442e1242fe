"""What encoders of texts share: their layers, the readers of their configurations, and their heads."""
