"""The process of one replica: `eagre serve` with its settings in the environment, which ends with its parent."""

import os
import signal
import sys
import threading
import time

from server.cli.memory import postpone_gc

LAST_S = 5.0  # for a server without its parent to end, in addition to the time of its streams


def main() -> int:
    """Serves until a signal of the parent, or until its end."""
    postpone_gc()
    from server.cli.serve import run_server
    from server.startup.settings import ServerSettings

    settings = ServerSettings.from_sources({}, os.environ)
    threading.Thread(
        target=_end_with_parent, args=(settings.shutdown_timeout,), name="parent-watch", daemon=True
    ).start()

    def announce(line: str) -> None:
        print(f"replica {settings.replica_name}: {line}", file=sys.stderr, flush=True)

    return run_server(settings, announce)


def _end_with_parent(shutdown_timeout: float) -> None:
    """Ends the process when standard input does: the parent holds its other end, and never writes to it."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(shutdown_timeout + LAST_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
