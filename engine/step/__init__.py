"""The step: its input arrays, its compiled programs, and the runner that dispatches them."""
