"""Text and tokens: tokenizers, incremental decoding, chat templates, stop strings."""
