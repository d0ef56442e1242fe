"""Where models come from: built-ins out of the package registry, and files and folders."""
