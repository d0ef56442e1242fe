"""How long the kernels of running programs take, what they read and what they compute: measured within whole steps.

A kernel is timed from its first instruction to its last by the thread that XLA calls it in, so the times of a step's
kernels are disjoint, and what is left of a step is XLA's own work and the calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from engine.backends.native.library import shared_library

_MOST = 256  # kernels with weights of shapes of their own, more than a model has
_PREFIX = "eagre_"


class KernelTime(NamedTuple):
    """The sums of the calls of one kernel on weights of one shape."""

    name: str
    num_outputs: int  # of its weights; 0: it has none, or they are not counted
    num_inputs: int
    num_calls: int
    seconds: float
    num_bytes: int  # of weights and pages that the calls must read
    num_operations: int  # multiplications and additions


class _KernelTime(ctypes.Structure):
    """As `KernelTime` in src/runtime/kernel_clock.h."""

    _fields_ = (
        ("name", ctypes.c_char * 48),
        *((name, ctypes.c_int64) for name in ("num_outputs", "num_inputs", "num_calls", "num_nanoseconds")),
        *((name, ctypes.c_int64) for name in ("num_bytes", "num_operations")),
    )


@contextmanager
def timed_kernels() -> Iterator[None]:
    """Times the kernels of all programs of this process in its block. Raises NativeUnavailable."""
    library = shared_library()
    taken_kernel_times()
    library.eagre_time_kernels(1)
    try:
        yield
    finally:
        library.eagre_time_kernels(0)


def taken_kernel_times() -> list[KernelTime]:
    """What was measured since the last call, which is forgotten. Raises NativeUnavailable."""
    take = shared_library().eagre_take_kernel_times
    take.argtypes, take.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
    times = (_KernelTime * _MOST)()
    count = min(take(times, _MOST), _MOST)
    return [
        KernelTime(
            each.name.decode().removeprefix(_PREFIX), each.num_outputs, each.num_inputs, each.num_calls,
            each.num_nanoseconds / 1e9, each.num_bytes, each.num_operations,
        )
        for each in times[:count]
    ]  # fmt: skip
