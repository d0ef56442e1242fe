"""Decoders that descend from GPT-2, with LayerNorms and joined queries, keys and values, one file each."""
