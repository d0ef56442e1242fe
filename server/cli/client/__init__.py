"""A small client of the server, for the commands that ask one: addresses, keys, streams and errors."""
