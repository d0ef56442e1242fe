"""The cuts that shorten the distribution before a token is drawn, one file each."""
