"""The outcomes of attacks, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson


@dataclass(slots=True)
class Ledger:
    """Outcomes by attack, and failures: responses that an attack must not get."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def note(self, attack: str, outcome: str) -> None:
        self.outcomes.setdefault(attack, Counter())[outcome] += 1

    def note_status(self, attack: str, status: int, expected: tuple[int, ...]) -> None:
        """Counts an HTTP status; any other than the expected ones is a failure."""
        self.note(attack, str(status))
        if status not in expected:
            self.fail(f"{attack}: status {status}, expected {' or '.join(map(str, expected))}")

    def fail(self, sentence: str) -> None:
        """Records a failure, once if it is repeated."""
        if sentence not in self.failures:
            self.failures.append(sentence)

    def add(self, other: Ledger) -> None:
        for attack, counts in other.outcomes.items():
            self.outcomes.setdefault(attack, Counter()).update(counts)
        for sentence in other.failures:
            self.fail(sentence)

    def to_dict(self) -> dict[str, Any]:
        return {"outcomes": self.outcomes, "failures": self.failures}

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """The ledger of another process, as `to_dict` gave it."""
        read = orjson.loads(text)
        return cls({name: Counter(counts) for name, counts in read["outcomes"].items()}, read["failures"])

    @property
    def num_attacks(self) -> int:
        return sum(sum(counts.values()) for counts in self.outcomes.values())

    def rows(self) -> dict[str, str]:
        return {
            name: ", ".join(f"{outcome} {count:,}" for outcome, count in sorted(counts.items()))
            for name, counts in sorted(self.outcomes.items())
        }


def print_rows(rows: Mapping[str, str]) -> None:
    for name, value in rows.items():
        print(f"{name:>26}  {value}", flush=True)
