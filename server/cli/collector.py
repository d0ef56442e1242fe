"""The garbage collector of a process that only serves."""

from __future__ import annotations

import gc

# A young collection starts when so many more objects were made than freed. It stops every thread while it frees what it
# finds, which takes some microseconds for each object: fifty thousand at once were a quarter of a second, when closed
# connections were left to it (server/http/transport/aiohttp_internals.py has why they are not).
_THRESHOLD = 1_000
# More than a start makes. Each collection would walk over modules and classes of which nothing is garbage: all of them
# took an eighth of the time of the imports.
_THRESHOLD_OF_A_START = 1_000_000


def put_off_collections() -> None:
    """Keeps the garbage collector from running until `calm_collector` is called. Only the owner of the process may call
    it, before it imports what it needs.
    """
    gc.set_threshold(_THRESHOLD_OF_A_START)


def calm_collector() -> None:
    """Keeps the garbage collector from stopping the engine thread and the event loop while they serve.

    Only the owner of the process may call it, because it changes settings of the whole process. All objects
    that are alive now are excluded from later collections, which are frequent and therefore short. A later call,
    after one more model was loaded, excludes what is new too.

    Neither call collects before. A collection would stop the engines of the other models, and at a start it took a
    third of a second of two, while the garbage that is kept instead made no difference to the resident memory.
    """
    gc.freeze()
    gc.set_threshold(_THRESHOLD, 5, 20)
