"""Products of float32 whose operands no device rounds.

The matrix units of GPUs and TPUs multiply float32 with 11 or 8 bits of precision, unless a program asks for all 24.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def unrounded(program: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The program, whose products of float32 ask for all bits where it is traced; others are as they were."""

    @wraps(program)
    def traced(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return program(*args, **kwargs)

    return traced
