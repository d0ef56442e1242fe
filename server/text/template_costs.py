"""What operators, methods and filters of texts would cost, looked at before they run.

Everything here raises TemplateError where that is more than the budget allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from jinja2 import TemplateError

from server.text.template_budget import TemplateBudget

MAX_WIDTH = 10_000  # of a formatted value, and the largest number that a filter takes as a width or a count
MAX_SQUARE = 1 << 30  # of the comparisons of characters within one call

_WIDTHS = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(\*|[0-9]+)?(?:\.(\*|[0-9]+))?")


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
    """How often `old` is found in `text`, at most."""
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
    """Says that a width or a count is not allowed."""
    raise TemplateError(f"this is too much work: a width or a count is above {MAX_WIDTH}, or is not a plain number")
