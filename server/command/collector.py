"""The garbage collector of a process that only serves."""

from __future__ import annotations

import gc

_THRESHOLD = 50_000  # a young collection starts when so many more objects were made than freed


def calm_collector() -> None:
    """Keeps the garbage collector from stopping the engine thread and the event loop while they serve.

    Only the owner of the process may call it, because it changes settings of the whole process. All objects
    that are alive now are excluded from later collections. The threshold is high, because a step of many
    rows makes many short-lived objects, and their reference counts free them without a collection.

    A later call, after one more model was loaded, excludes what is new too. It does not collect before, because that
    would stop the engines of the other models.
    """
    if not gc.get_freeze_count():
        gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD, 20, 20)
