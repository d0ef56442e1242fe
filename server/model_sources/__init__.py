"""Where models come from: built-ins out of the package registry, files, folders, the Hugging Face Hub."""
