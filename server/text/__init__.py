"""Text and tokens: tokenizers, incremental detokenising, chat templates and stop strings."""
