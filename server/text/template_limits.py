"""Limits of one run of a chat template: its time, and the size of the texts and values that it builds."""

import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined

MAX_SECONDS = 5.0
MAX_SIZE = 1 << 20  # of one text or value, in characters; plus GROWTH times the size of the input
GROWTH = 8
MAX_TOTAL = 224 << 20  # of all texts and values that are built, likewise with TOTAL_GROWTH
TOTAL_GROWTH = 64
MAX_INTEGER_BITS = 4096
VALUE_SIZE = 8  # of a value in addition to its text, in characters
KNOWN_SIZE = 256  # of remembering the size of a list, in characters
BITS_PER_DIGIT = 3  # at least
MAX_WIDTH = 10_000  # of a formatted value, and the largest number that a filter takes as a width or a count
MAX_SQUARE = 1 << 30  # of the comparisons of characters within one call
MAX_WRAPPED = 100_000  # characters of a text that is wrapped, which takes the square of their number

# Other codecs and ways to replace what cannot be encoded take far more than linear time, without a pause.
_CODECS = frozenset({"utf-8", "utf8", "ascii", "latin-1", "latin1"})
_CODEC_ERRORS = frozenset({"strict", "ignore", "replace"})

_WIDTHS = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(\*|[0-9]+)?(?:\.(\*|[0-9]+))?")


class TemplateTimeout(Exception):
    """The template needs more time than it may have in this thread; another thread can give it more."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the template takes longer than {seconds:g} s")
        self.seconds = seconds


class PromptTextTooLong(Exception):
    """The rendered prompt is longer than this thread may tokenize; a worker thread has the time."""

    def __init__(self, num_chars: int) -> None:
        super().__init__(f"the template has written {num_chars} characters")
        self.num_chars = num_chars


class TemplateBudget:
    """Counts the work of a template and raises TemplateError where it exceeds a limit, relative to the size of `given`.

    Sizes are those of trees: what is in a list twice counts twice, because writing, comparing and hashing the list walk
    over it twice. Otherwise a few nested lists could take practically for ever.
    """

    def __init__(self, given: object, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._end = time.monotonic() + max_seconds
        # Of containers, by id, each with the container itself, so that no id is used again.
        self._sizes: dict[int, tuple[object, int]] = {}
        self._holders: dict[int, list[int]] = {}  # of containers within these, by id; perhaps some that are gone
        self.max_size = self._max_total = MAX_TOTAL  # until the size of what is given is known
        self._total = 0
        num_given = self.size(given)
        self.max_size = MAX_SIZE + GROWTH * num_given
        self._max_total = self._total + MAX_TOTAL + TOTAL_GROWTH * num_given

    def tick(self) -> None:
        """Checks the time limit, for each loop step, call and operator; raises TemplateError or TemplateTimeout."""
        if time.monotonic() > self._end:
            if self._max_seconds < MAX_SECONDS:
                raise TemplateTimeout(self._max_seconds)
            _refuse(f"it runs for more than {MAX_SECONDS:g} s, the limit")

    def size(self, value: object) -> int:
        """The number of characters of a value and of all that is in it; raises TemplateError if it is too large."""
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
                self._holders.setdefault(id(part), []).append(id(value))
            elif part is None or kind is bool:
                num_chars += 2 * VALUE_SIZE
            else:
                num_chars += VALUE_SIZE + self.size(part)
                if isinstance(part, Collection):
                    self._holders.setdefault(id(part), []).append(id(value))
            if num_chars > self.max_size:
                self.check_size(num_chars)
        self._remember(value, num_chars)
        return num_chars

    def _remember(self, value: object, num_chars: int) -> None:
        self._total += KNOWN_SIZE
        if self._total > self._max_total:
            self.spend(0)
        self._sizes[id(value)] = (value, num_chars)

    def appended(self, values: list[Any], part: object) -> None:
        """Counts what was appended to a list; the sizes of all that have the list are found again when they are needed.

        Raises TemplateError where the list is too large now.
        """
        num_chars = VALUE_SIZE + self.size(part)
        outdated = self._holders.pop(id(values), [])
        while outdated:
            holder = outdated.pop()
            self._sizes.pop(holder, None)
            outdated += self._holders.pop(holder, ())
        known = self._sizes.get(id(values))
        if known is not None:
            self.check_size(known[1] + num_chars)
            self._sizes[id(values)] = (values, known[1] + num_chars)
            if isinstance(part, Collection) and not isinstance(part, str | bytes):
                self._holders.setdefault(id(part), []).append(id(values))
        self.spend(VALUE_SIZE)

    def check_size(self, num_chars: float) -> None:
        """Rejects a text or value of too many characters, best before it is built."""
        if num_chars > self.max_size:
            _refuse(f"it builds a text or value of more than {self.max_size} characters, the limit for these messages")

    def spend(self, num_chars: int) -> None:
        """Counts characters that are built; raises TemplateError where the total is too large."""
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
        """Counts a value that was built, perhaps again; raises TemplateError beyond the limits or for long integers."""
        if isinstance(value, str | bytes):
            self.check_size(len(value))
            self.spend(len(value))
        elif isinstance(value, int):
            self.check_integer(value.bit_length())
        elif value is not None and isinstance(value, Collection) and not isinstance(value, Undefined):
            self.size(value)
            self.spend(VALUE_SIZE * len(value))

    def joined(self, value: object, num_chars: int) -> None:
        """`built` for the sum of two values, whose sizes together are `num_chars`, without a walk over both."""
        if isinstance(value, list | tuple):
            self._remember(value, num_chars)
            self.spend(VALUE_SIZE * len(value))
        else:
            self.built(value)

    def check_integer(self, num_bits: int) -> None:
        if num_bits > MAX_INTEGER_BITS:
            _refuse(f"it computes an integer of more than {MAX_INTEGER_BITS} bits, the limit")


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(f"this is too much work: {reason}")


_budget: ContextVar[TemplateBudget] = ContextVar("template budget")
_seconds: ContextVar[float] = ContextVar("seconds for a template", default=MAX_SECONDS)


current_budget = _budget.get  # of the template that runs in this thread


@contextmanager
def running_template(given: object) -> Iterator[None]:
    """Sets up the budget of the template that runs within this context; raises TemplateError for a large `given`."""
    token = _budget.set(TemplateBudget(given, _seconds.get()))
    try:
        yield
    finally:
        _budget.reset(token)


@contextmanager
def inline_template_limits(seconds: float) -> Iterator[None]:
    """Within this context, for the event loop's thread, a template that takes longer raises TemplateTimeout."""
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)


def check_method(
    budget: TemplateBudget, text: str | bytes, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Refuses a method of a text whose result would be too large, or that would take too long."""
    match name:
        case "center" | "ljust" | "rjust" | "zfill":
            check_width(*args)
        case "expandtabs":
            check_width(*args, *kwargs.values())
            tabs = text.count("\t") if isinstance(text, str) else text.count(b"\t")
            width = next((width for width in (*args, *kwargs.values()) if isinstance(width, int)), 8)
            budget.check_size(len(text) + tabs * max(width, 0))
        case "replace" if len(args) >= 2:
            budget.check_size(len(text) + num_found(text, args[0]) * budget.size(args[1]))
        case "translate":
            budget.check_size(len(text) * max(1, budget.size(args)))
        case "encode" | "decode":
            check_codec(*args, **kwargs)
        case "striptags":  # of jinja2's Markup, as the filter
            raise TemplateError("there is no striptags for prompts")
        case "join" if len(args) == 1:
            parts = list(args[0])
            budget.check_size(budget.size(parts) + len(parts) * len(text))
            return (parts,)
        case "rfind" | "rindex" | "rsplit" | "rpartition" | "strip" | "lstrip" | "rstrip":
            # These compare each place with each character that is looked for.
            if len(text) * budget.size(args) > MAX_SQUARE:
                raise TemplateError(f"this is too much work: {name} looks for {budget.size(args)} characters")
    return args


def num_found(text: Any, old: Any) -> int:
    """An upper bound of how often `old` is found in `text`."""
    if isinstance(text, str) and isinstance(old, str):
        return text.count(old)
    if isinstance(text, bytes) and isinstance(old, bytes):
        return text.count(old)
    return len(text) + 1


def check_percent(budget: TemplateBudget, text: Any, values: Any) -> None:
    """Refuses `text % values` with a width that is too large, or that is given by a value."""
    pattern = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    for widths in _WIDTHS.findall(pattern):
        for width in widths:
            if width == "*":
                refuse_width()
            check_width(int(width[:9] or 0))
    budget.check_size(len(pattern) + pattern.count("%") * budget.size(values))


def check_codec(encoding: object = "utf-8", errors: object = "strict", /, **named: object) -> None:
    """Refuses `encode` and `decode` with what no chat template needs."""
    encoding, errors = named.get("encoding", encoding), named.get("errors", errors)
    if str(encoding).lower() not in _CODECS or errors not in _CODEC_ERRORS:
        raise TemplateError(f"the codec {str(encoding)[:40]!r} with {str(errors)[:40]!r} is not there for prompts")


def check_integers(budget: TemplateBudget, operator: str, left: int, right: int) -> None:
    """Refuses an integer with too many digits before it is computed."""
    bits = (left.bit_length(), right.bit_length())
    match operator:
        case "**" if right > 0:
            budget.check_integer(bits[0] * right if bits[0] > 1 else 0)
        case "*":
            budget.check_integer(sum(bits))


def check_width(*values: Any) -> None:
    """Refuses a number that is too large for a width or a count; what is no integer passes."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            refuse_width()


def refuse_width() -> NoReturn:
    raise TemplateError(f"this is too much work: a width or a count is above {MAX_WIDTH}, or is not a plain number")
