"""Answers that outlive their connections: what was written of them stays in bounded logs, which many readers follow."""
