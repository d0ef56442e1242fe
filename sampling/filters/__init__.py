"""The filters that shorten the distribution before a token is drawn from it, one file each."""
