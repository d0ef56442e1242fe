"""The outcomes of attacks, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Outcomes by attack, and failures: responses that an attack must not get. It can be pickled.

    With `may_be_full`, the server has so few descriptors that it may refuse any connection: status 503 is no failure.
    """

    may_be_full: bool = False
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def note(self, attack: str, outcome: str) -> None:
        self.outcomes.setdefault(attack, Counter())[outcome] += 1

    def note_status(self, attack: str, status: int, expected: tuple[int, ...], asked: str = "a request") -> None:
        """Counts an HTTP status; any other than the expected ones is a failure."""
        self.note(attack, str(status))
        if not self.is_expected(status, expected):
            self.fail(f"{attack}: {asked} got status {status}, expected {' or '.join(map(str, expected))}")

    def is_expected(self, status: int, expected: tuple[int, ...]) -> bool:
        return status in expected or (status == 503 and self.may_be_full)

    def fail(self, sentence: str) -> None:
        if sentence not in self.failures:
            self.failures.append(sentence)

    def add(self, other: Ledger) -> None:
        for attack, counts in other.outcomes.items():
            self.outcomes.setdefault(attack, Counter()).update(counts)
        for sentence in other.failures:
            self.fail(sentence)

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
