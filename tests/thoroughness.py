"""How much a test goes through: a part in the checks of every change, everything with EAGRE_FULL=1."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

IS_FULL = os.environ.get("EAGRE_FULL") == "1"

Item = TypeVar("Item")


def some(items: Sequence[Item], few: int) -> list[Item]:
    """`few` of the items, spread evenly, the first among them and the last of several; in a full run all."""
    if IS_FULL or few >= len(items):
        return list(items)
    return [items[i * (len(items) - 1) // max(1, few - 1)] for i in range(few)]
