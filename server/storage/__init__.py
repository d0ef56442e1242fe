"""Stored responses and conversations: SQLite, in memory or in a file that survives the process."""
