"""The engine, which knows token ids but no text and no HTTP: its client, thread and lifecycle."""
