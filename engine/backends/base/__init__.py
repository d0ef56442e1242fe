"""What every body of kernels provides, and the words in which a model asks for it."""
