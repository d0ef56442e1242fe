"""Authenticated TCP connections between servers: mutual proof of a shared key, deadlines, and places for strangers."""
