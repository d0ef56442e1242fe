"""`eagre` with a watcher inside, whose pauses go to a file.

    python -m benchmarks.chaos.watched_server PAUSES serve --port 8000

What stands behind the path of the file are the arguments of `eagre`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from benchmarks.chaos.watcher import Watcher, engine_timelines
from server.cli import serve as serving
from server.cli.main import main


def watched_main(arguments: Sequence[str]) -> int:
    """Runs the command line behind the path of the file; its exit status."""
    path, *rest = arguments
    serve = serving.serve

    async def watched(*options: object) -> int:
        Watcher(asyncio.get_running_loop(), Path(path), engine_timelines, threading.get_ident()).start()
        return await serve(*options)  # type: ignore[arg-type]

    with patch.object(serving, "serve", watched):
        return main(rest)


if __name__ == "__main__":
    sys.exit(watched_main(sys.argv[1:]))
