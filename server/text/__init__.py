"""Tokenizers, incremental detokenizing, chat templates and stop strings."""
