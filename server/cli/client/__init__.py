"""A small HTTP client of the server for the commands, and a model in the command's own process."""
