"""A token that was added to a vocabulary after its training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is looked for in a text before anything else, by its own text."""

    token_id: int
    is_special: bool = False  # a control token, which stands for no text
    strips_left: bool = False  # swallows the white space in front of it
    strips_right: bool = False  # swallows the white space behind it
