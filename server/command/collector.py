"""The garbage collector of a process that does nothing but serve."""

from __future__ import annotations

import gc

_THRESHOLD = 50_000  # objects more than freed, until a young collection


def calm_collector() -> None:
    """Keeps the collector from stopping both threads in the middle of serving; for who owns the process.

    What is alive now stays so; a full collection over it takes tens of milliseconds. A step of
    hundreds of rows makes enough short-lived objects for a young collection of its own, which
    finds nothing: they die by their reference counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD, 20, 20)
