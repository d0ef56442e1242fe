"""What one run of a chat template may cost: seconds, characters, and the size of the values that it builds."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined

MAX_SECONDS = 5.0
MAX_SIZE = 4 << 20  # of one text or value, in characters; beside GROWTH times what the template is given
GROWTH = 8
MAX_TOTAL = 512 << 20  # of all texts and values that are built, in characters; beside TOTAL_GROWTH times what is given
TOTAL_GROWTH = 64
MAX_INTEGER_BITS = 4096
VALUE_SIZE = 8  # what a value costs beside its text, in characters
KNOWN_SIZE = 256  # what it costs to remember the size of a list, in characters
BITS_PER_DIGIT = 3  # at least


class RenderingTakesLong(Exception):
    """The template needs more time than it may have in this thread; another thread can give it more."""

    def __init__(self, seconds: float) -> None:
        """Args:
        seconds: that it may have in this thread.
        """
        super().__init__(f"the template takes longer than {seconds:g} s")
        self.seconds = seconds


class RenderedTextIsLong(Exception):
    """The template has written more than this thread may tokenise; another thread has the time."""

    def __init__(self, num_chars: int) -> None:
        """Args:
        num_chars: that the template has written.
        """
        super().__init__(f"the template has written {num_chars} characters")
        self.num_chars = num_chars


class TemplateBudget:
    """Counts what a template does, and ends it with a TemplateError where that is too much.

    Sizes are those of trees: what is in a list twice counts twice, because writing, comparing and hashing the list
    walk over it twice. Without that a few nested lists would take longer than anybody can wait.
    """

    def __init__(self, given: object, max_seconds: float = MAX_SECONDS) -> None:
        """Args:
        given: what comes from outside: messages and variables.
        """
        self._max_seconds = max_seconds
        self._end = time.monotonic() + max_seconds
        # Of containers, by id, each with the container itself, so that no id is used again.
        self._sizes: dict[int, tuple[object, int]] = {}
        self.max_size = self._max_total = MAX_TOTAL  # until the size of what is given is known
        self._total = 0
        num_given = self.size(given)
        self.max_size = MAX_SIZE + GROWTH * num_given
        self._max_total = self._total + MAX_TOTAL + TOTAL_GROWTH * num_given

    def tick(self) -> None:
        """Looks at the clock. Called for each step of a loop, each call and each operator.

        Raises:
            TemplateError: the time is over.
            RenderingTakesLong: the same, where the time was shorter than it may be.
        """
        if time.monotonic() > self._end:
            if self._max_seconds < MAX_SECONDS:
                raise RenderingTakesLong(self._max_seconds)
            _refuse(f"it runs for more than {MAX_SECONDS:g} s, the limit")

    def size(self, value: object) -> int:
        """The number of characters of a value and of all that is in it.

        Raises:
            TemplateError: it is larger than a value may be.
        """
        if isinstance(value, str | bytes):
            return len(value)
        if type(value) is dict or type(value) is list:  # nearly always, and quicker found out
            return self._size_of_collection(value)
        if isinstance(value, int):
            return VALUE_SIZE + value.bit_length() // BITS_PER_DIGIT
        if value is None or isinstance(value, Undefined | range) or not isinstance(value, Collection):
            return VALUE_SIZE
        return self._size_of_collection(value)

    def _size_of_collection(self, value: Collection[Any]) -> int:
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        parts = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
        num_chars = VALUE_SIZE
        for part in parts:
            kind = type(part)
            if kind is str:
                num_chars += VALUE_SIZE + len(part)
            elif kind is dict or kind is list:
                num_chars += VALUE_SIZE + self._size_of_collection(part)
            elif part is None or kind is bool:
                num_chars += 2 * VALUE_SIZE
            else:
                num_chars += VALUE_SIZE + self.size(part)
            if num_chars > self.max_size:
                self.check_size(num_chars)
        self._remember(value, num_chars)
        return num_chars

    def _remember(self, value: object, num_chars: int) -> None:
        self._total += KNOWN_SIZE
        if self._total > self._max_total:
            self.spend(0)
        self._sizes[id(value)] = (value, num_chars)

    def check_size(self, num_chars: float) -> None:
        """Refuses a text or value of so many characters, best before it is built.

        Raises:
            TemplateError: it is larger than one may be.
        """
        if num_chars > self.max_size:
            _refuse(f"it builds a text or value of more than {self.max_size} characters, the limit for these messages")

    def spend(self, num_chars: int) -> None:
        """Counts characters that are built.

        Raises:
            TemplateError: all that was built is larger than it may be.
        """
        self._total += num_chars
        if self._total > self._max_total:
            _refuse(f"it builds more than {self._max_total} characters in all, the limit for these messages")

    def joins(self, num_chars: int) -> None:
        """`tick`, `check_size` and `spend` in one call, for the concatenation of two texts: most steps are one."""
        self._total += num_chars
        if num_chars > self.max_size or self._total > self._max_total or time.monotonic() > self._end:
            self.tick()
            self.check_size(num_chars)
            self.spend(0)

    def built(self, value: object) -> None:
        """Counts a value that was built; one that was there before may be counted again.

        Raises:
            TemplateError: as `check_size` and `spend`; or it is an integer with too many digits.
        """
        if isinstance(value, str | bytes):
            self.check_size(len(value))
            self.spend(len(value))
        elif isinstance(value, int):
            self.check_integer(value.bit_length())
        elif value is not None and isinstance(value, Collection) and not isinstance(value, Undefined):
            self.size(value)
            self.spend(VALUE_SIZE * len(value))

    def joined(self, value: object, num_chars: int) -> None:
        """`built` for a value that was put together from two others, without a walk over both.

        Args:
            num_chars: the sizes of the two together.
        """
        if isinstance(value, list | tuple):
            self._remember(value, num_chars)
            self.spend(VALUE_SIZE * len(value))
        else:
            self.built(value)

    def check_integer(self, num_bits: int) -> None:
        """Raises TemplateError where an integer has too many bits."""
        if num_bits > MAX_INTEGER_BITS:
            _refuse(f"it computes an integer of more than {MAX_INTEGER_BITS} bits, the limit")


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(f"this is too much work: {reason}")


_budget: ContextVar[TemplateBudget] = ContextVar("template budget")
_seconds: ContextVar[float] = ContextVar("seconds for a template", default=MAX_SECONDS)


current_budget = _budget.get  # of the template that runs in this thread


@contextmanager
def spending(given: object) -> Iterator[None]:
    """Gives the template that is run within it a budget.

    Raises:
        TemplateError: what it is given is larger than anything may be.
    """
    token = _budget.set(TemplateBudget(given, _seconds.get()))
    try:
        yield
    finally:
        _budget.reset(token)


@contextmanager
def rendering_briefly(seconds: float) -> Iterator[None]:
    """Within it a template that takes longer raises RenderingTakesLong."""
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)
