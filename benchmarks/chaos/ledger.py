"""What came of every attack."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import orjson


@dataclass(slots=True)
class Ledger:
    """Counts outcomes by attack; an answer that no attack asked for is kept as a failure."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def note(self, attack: str, outcome: str) -> None:
        """Counts one outcome."""
        self.outcomes.setdefault(attack, Counter())[outcome] += 1

    def note_status(self, attack: str, status: int, expected: tuple[int, ...]) -> None:
        """Counts an HTTP status; any other than the expected ones is a failure."""
        self.note(attack, str(status))
        if status not in expected:
            self.fail(f"{attack}: status {status}, expected {' or '.join(map(str, expected))}")

    def fail(self, sentence: str) -> None:
        """Keeps a failure; equal ones once."""
        if sentence not in self.failures:
            self.failures.append(sentence)

    def add(self, other: Ledger) -> None:
        """Adds what another ledger has."""
        for attack, counts in other.outcomes.items():
            self.outcomes.setdefault(attack, Counter()).update(counts)
        for sentence in other.failures:
            self.fail(sentence)

    def to_dict(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {"outcomes": self.outcomes, "failures": self.failures}

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """The ledger that another process has written."""
        told = orjson.loads(text)
        return cls({name: Counter(counts) for name, counts in told["outcomes"].items()}, told["failures"])

    @property
    def num_attacks(self) -> int:
        return sum(sum(counts.values()) for counts in self.outcomes.values())

    def rows(self) -> list[str]:
        """One line for each attack."""
        return [
            f"{name:>26}  " + ", ".join(f"{outcome} {count:,}" for outcome, count in sorted(counts.items()))
            for name, counts in sorted(self.outcomes.items())
        ]
