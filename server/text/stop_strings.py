"""Stop strings, found in a text while it arrives."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts one output's text at the first stop string.

    The match that ends first wins; of several that end at the same character, the longest. Read
    character by character the text has only one such match, so the outcome is the same for every
    split of it into chunks. What is held back is the longest end of the text that may yet become a
    stop string, and nothing more.

    Each stop string is followed by the automaton of Knuth, Morris and Pratt, so a character costs
    the same however long the strings are.

        stops = StopStrings(["\\n\\n", "User:"])
        text, stopped = stops.feed(delta)  # stopped: the stop string that was found
        rest = stops.flush()               # at the end of an output that was not stopped

    Raises:
        ValueError: a stop string is empty.
    """

    __slots__ = ("_automata", "_first_characters", "_held", "_include_stop", "_stopped")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string is empty; it must have at least one character")
        # The longest first, so that of two matches that end together the longest is met first.
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=lambda stop: (-len(stop), stop))]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._include_stop = include_stop
        self._held = ""
        self._stopped: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Takes the next piece of text; returns what may go out and the stop string found, if any.

        After a stop string has been found, everything fed is dropped.
        """
        if self._stopped is not None:
            return "", self._stopped
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None  # nothing begins here: by far the most frequent case
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            for automaton in self._automata:
                if automaton.advance(character):
                    self._held, self._stopped = "", automaton.stop
                    end = position if self._include_stop else position - len(automaton.stop)
                    return pending[:end], automaton.stop
        num_held = max(automaton.num_matched for automaton in self._automata)
        self._held = pending[len(pending) - num_held :]
        return pending[: len(pending) - num_held], None

    def flush(self) -> str:
        """What was held back, now that the output has ended; "" if a stop string ended it."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """How much of one stop string the text read so far ends with."""

    __slots__ = ("_fallback", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        # fallback[n]: the longest proper end of stop[: n + 1] that is also a beginning of it.
        self._fallback = [0] * len(stop)
        length = 0
        for index in range(1, len(stop)):
            while length and stop[index] != stop[length]:
                length = self._fallback[length - 1]
            length += stop[index] == stop[length]
            self._fallback[index] = length

    def advance(self, character: str) -> bool:
        """Reads one character; True if the stop string ends with it. Not to be called after that."""
        while self.num_matched and character != self.stop[self.num_matched]:
            self.num_matched = self._fallback[self.num_matched - 1]
        self.num_matched += character == self.stop[self.num_matched]
        return self.num_matched == len(self.stop)
