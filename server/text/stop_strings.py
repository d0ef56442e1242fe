"""Finds stop strings in text while it is streamed."""

from collections.abc import Sequence


class StopStrings:
    """Cuts the text of one output at the first stop string.

    The match that ends first wins, and among matches that end at the same character the longest. Only the longest end
    of the text that may still become a stop string is held back. Each stop string has a Knuth-Morris-Pratt automaton,
    so the cost of a character does not depend on their lengths.

        stops = StopStrings(["\n\n", "User:"])
        text, stopped = stops.feed(delta)  # stopped: the stop string that was found
        rest = stops.flush()               # at the end of an output that was not stopped

    Raises ValueError if a stop string is empty.
    """

    __slots__ = ("_automata", "_first_characters", "_held", "_include_stop", "_num_sent", "_stopped")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string is empty; it must have at least one character")
        # Longest first, so that the longest of several matches at one character is found first.
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=lambda stop: (-len(stop), stop))]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._include_stop = include_stop
        self._held = ""
        self._num_sent = 0  # first characters of what is held that the reader has seen already
        self._stopped: str | None = None

    def begin_behind(self, text: str) -> None:
        """Continues text that the reader has already; a stop string may begin in it, and must end behind it."""
        longest = max((len(automaton.stop) for automaton in self._automata), default=0)
        for character in text[max(0, len(text) - longest + 1) :]:
            for automaton in self._automata:
                if automaton.advance(character):
                    automaton.num_matched = 0
        self._num_sent = max((automaton.num_matched for automaton in self._automata), default=0)
        self._held = text[len(text) - self._num_sent :]

    def feed(self, text: str) -> tuple[str, str | None]:
        """Takes a piece of text; returns what may be sent, nothing after a stop string, and the one that was found."""
        if self._stopped is not None:
            return "", self._stopped
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None  # no stop string can begin here, which is the usual case
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            for automaton in self._automata:
                if automaton.advance(character):
                    self._held, self._stopped = "", automaton.stop
                    end = position if self._include_stop else position - len(automaton.stop)
                    return self._without_sent(pending[:end]), automaton.stop
        num_held = max(automaton.num_matched for automaton in self._automata)
        self._held = pending[len(pending) - num_held :]
        return self._without_sent(pending[: len(pending) - num_held]), None

    def flush(self) -> str:
        """The text that is still held back; call it when the output has ended without a stop string."""
        held, self._held = self._held, ""
        return self._without_sent(held)

    def _without_sent(self, text: str) -> str:
        """`text` without its first characters that the reader has already."""
        num_sent, self._num_sent = self._num_sent, max(0, self._num_sent - len(text))
        return text[num_sent:]


class _Automaton:
    """Counts how many characters of one stop string the text so far ends with."""

    __slots__ = ("_fallback", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        # fallback[n] is the length of the longest proper suffix of stop[: n + 1] that is also its prefix.
        self._fallback = [0] * len(stop)
        length = 0
        for index in range(1, len(stop)):
            while length and stop[index] != stop[length]:
                length = self._fallback[length - 1]
            length += stop[index] == stop[length]
            self._fallback[index] = length

    def advance(self, character: str) -> bool:
        """Reads one character; True if it completes the stop string, after which no call is allowed."""
        while self.num_matched and character != self.stop[self.num_matched]:
            self.num_matched = self._fallback[self.num_matched - 1]
        self.num_matched += character == self.stop[self.num_matched]
        return self.num_matched == len(self.stop)
