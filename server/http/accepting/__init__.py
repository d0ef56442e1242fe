"""How connections are accepted: places, shares of addresses, descriptors, and who goes first."""
