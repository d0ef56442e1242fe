"""The process of a replica's server. Its settings are in the environment.

It ends when the process that placed it is gone, however that went: then the pipe at its standard input is at its end.
Its clients are streamed to by the front and not by that process, so it ends as after SIGTERM, and they keep their
answers.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def watch_parent(pipe: int) -> None:
    """Sends this process SIGTERM when the other end of `pipe` is closed; blocks until then."""
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=watch_parent, args=(os.dup(0),), daemon=True).start()
    sys.argv = ["eagre", "serve"]
    runpy.run_module("server", run_name="__main__")
