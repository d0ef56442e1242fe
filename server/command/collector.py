"""The garbage collector of a process that only serves."""

from __future__ import annotations

import gc

# A young collection starts when so many more objects were made than freed. It stops every thread while it frees what it
# finds, which takes some microseconds for each object: a closed connection of aiohttp leaves dozens of them, and fifty
# thousand at once were a quarter of a second.
_THRESHOLD = 1_000


def calm_collector() -> None:
    """Keeps the garbage collector from stopping the engine thread and the event loop while they serve.

    Only the owner of the process may call it, because it changes settings of the whole process. All objects
    that are alive now are excluded from later collections, which are frequent and therefore short.

    A later call, after one more model was loaded, excludes what is new too. It does not collect before, because that
    would stop the engines of the other models.
    """
    if not gc.get_freeze_count():
        gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD, 5, 20)
