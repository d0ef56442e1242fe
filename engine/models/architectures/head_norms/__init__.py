"""Models that may norm each head of queries and keys with weights of its own."""
