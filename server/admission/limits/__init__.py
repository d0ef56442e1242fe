"""Limits of API keys: requests a second, streams at once, tokens a minute; and what each key has used."""
