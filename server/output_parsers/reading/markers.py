"""Markers that may be cut between two pieces of a text."""


def overlap(text: str, marker: str) -> int:
    """The length of the longest end of `text` that `marker` begins with, less than the whole marker."""
    most = min(len(marker) - 1, len(text))
    return next((size for size in range(most, 0, -1) if marker.startswith(text[-size:])), 0)
