"""Pictures in requests: where they come from, and how they are decoded within bounds."""
