"""Streams, which answers are written to: bounded logs of events, their readers, their budgets, and their registry."""
