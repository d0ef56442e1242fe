"""Parts of decoders whose layers are of several kinds of blocks, such as attention and state spaces."""
