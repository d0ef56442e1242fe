"""Further decoders without experts, one file each."""
