"""Text and tokens as the routes see them: tokenizers, incremental detokenising, chat templates and stop strings."""
