"""What goes wrong between the name of a model and its files."""

from __future__ import annotations


class ModelStoreError(RuntimeError):
    """A model cannot be found, fetched or verified; the message says what to do."""
