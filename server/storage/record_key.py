"""The name of a stored record, and what goes wrong with stored records."""

from __future__ import annotations

from typing import NamedTuple


class StoreError(RuntimeError):
    """The store cannot do what was asked: its file is unusable, its disk is full, a record is too large."""


class TooLarge(StoreError):
    """A record, or several that are asked for together, have more bytes than they may have."""


class RecordKey(NamedTuple):
    """A record is found by all three together, so that an owner never meets the records of another."""

    kind: str  # what sort of record it is: "response"
    owner: str  # whose it is: `Tenant.owner`
    id: str
