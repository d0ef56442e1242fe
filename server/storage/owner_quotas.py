"""How much each owner has in a store, and whose records are evicted when it is full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OwnerUsage:
    """The counts of one owner or of all together."""

    num_records: int = 0
    num_bytes: int = 0

    def add(self, num_records: int, num_bytes: int) -> None:
        self.num_records += num_records
        self.num_bytes += num_bytes


class OwnerQuotas:
    """Counts by owner. Those with the most are evicted first, so that no owner can push out another's records."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.total = OwnerUsage()
        self._owners: dict[str, OwnerUsage] = {}

    def add(self, owner: str, num_records: int, num_bytes: int) -> None:
        """Counts records that have come, or with negative numbers, that have gone."""
        share = self._owners.setdefault(owner, OwnerUsage())
        share.add(num_records, num_bytes)
        self.total.add(num_records, num_bytes)
        if share.num_records == 0:
            del self._owners[owner]

    def clear(self) -> None:
        self.total = OwnerUsage()
        self._owners = {}

    def owner_to_evict(self) -> str | None:
        """The owner whose least recently used record goes next; None while everything is within the bounds."""
        if self.total.num_bytes > self.max_bytes:
            return max(self._owners, key=lambda owner: self._owners[owner].num_bytes)
        if self.total.num_records > self.max_records:
            return max(self._owners, key=lambda owner: self._owners[owner].num_records)
        return None
