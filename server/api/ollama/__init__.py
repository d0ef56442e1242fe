"""Ollama's API: its requests become chat and text completions, its answers are lines of JSON (NDJSON)."""
