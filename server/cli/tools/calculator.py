"""A calculator for the model: the value of an arithmetic expression, by precedence climbing; nothing is run as code."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable

MAX_CHARACTERS = 1000
MAX_DEPTH = 100
SIGNIFICANT_DIGITS = 15

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs, "acos": math.acos, "asin": math.asin, "atan": math.atan, "cbrt": math.cbrt, "ceil": math.ceil,
    "cos": math.cos, "exp": math.exp, "floor": math.floor, "ln": math.log, "log": math.log10, "log10": math.log10,
    "log2": math.log2, "max": max, "min": min, "round": lambda value: math.floor(value + 0.5),
    "sign": lambda value: (value > 0) - (value < 0), "sin": math.sin, "sqrt": math.sqrt, "tan": math.tan,
    "trunc": math.trunc,
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "e": math.e}
_OPERATORS: dict[str, tuple[int, Callable[[float, float], float]]] = {
    "+": (1, operator.add), "-": (1, operator.sub), "*": (2, operator.mul), "/": (2, operator.truediv),
    "%": (2, math.fmod), "^": (4, math.pow), "**": (4, math.pow),
}  # fmt: skip
_NEGATION = 3  # binds tighter than a product and looser than a power: -2^2 is -4
_TOKEN = re.compile(r"\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z][A-Za-z0-9]*|\*\*|[-+*/%^(),]))", re.ASCII)


class CalculationError(ValueError):
    """An expression has no value; the message is a sentence for the model."""


def calculate(expression: str) -> str:
    """The value of an expression; raises CalculationError."""
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"The expression has more than {MAX_CHARACTERS} characters.")
    tokens = _tokenize(expression.replace("×", "*").replace("÷", "/").replace("−", "-").rstrip())
    try:
        value = float(_Parser(tokens).parse())
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, CalculationError):
            raise
        raise CalculationError("The value is not a finite number.") from error
    if not math.isfinite(value):
        raise CalculationError("The value is not a finite number.")
    value = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return str(int(value)) if value.is_integer() and abs(value) < 10**SIGNIFICANT_DIGITS else repr(value)


def _tokenize(text: str) -> list[float | str]:
    tokens: list[float | str] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise CalculationError(f'The expression cannot be read at "{text[position : position + 20].strip()}".')
        tokens.append(float(found[1]) if found[1] is not None else found[2].lower())
        position = found.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[float | str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def parse(self) -> float:
        value = self._expression(0)
        if self._position < len(self._tokens):
            raise CalculationError("The expression goes on behind its end.")
        return value

    def _expression(self, least: int) -> float:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError("The expression is nested too deeply.")
        left = self._operand()
        while (found := _OPERATORS.get(str(self._next()))) is not None and found[0] >= least:
            symbol = self._take()
            precedence, apply = found
            is_power = symbol in ("^", "**")  # from the right: 2^3^2 is 2^9
            left = apply(left, self._expression(precedence if is_power else precedence + 1))
        self._depth -= 1
        return left

    def _operand(self) -> float:
        token = self._take()
        match token:
            case float():
                return token
            case None:
                raise CalculationError("The expression ends too early.")
            case "-":
                return -self._expression(_NEGATION)
            case "+":
                return self._expression(_NEGATION)
            case "(":
                return self._values(1)[0]
            case str() if not token[0].isalpha():
                raise CalculationError(f'"{token}" stands where a number must be.')
        if self._next() != "(":
            if token not in _CONSTANTS:
                raise CalculationError(f"There is no {token}.")
            return _CONSTANTS[token]
        if token not in _FUNCTIONS:
            raise CalculationError(f"There is no function {token}.")
        self._take()
        values = self._values(MAX_CHARACTERS if token in ("max", "min") else 1)
        return values[0] if len(values) == 1 and token in ("max", "min") else _FUNCTIONS[token](*values)

    def _values(self, most: int) -> list[float]:
        """The values up to the bracket that closes."""
        values = [self._expression(0)]
        while self._next() == "," and len(values) < most:
            self._take()
            values.append(self._expression(0))
        if self._take() != ")":
            raise CalculationError("A bracket is not closed.")
        return values

    def _next(self) -> float | str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take(self) -> float | str | None:
        token = self._next()
        self._position += 1
        return token
