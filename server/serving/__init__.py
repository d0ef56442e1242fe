"""The served models: which of them are in memory, and to which of them a request goes."""
