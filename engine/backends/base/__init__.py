"""What every backend provides, and the types by which models use it."""
