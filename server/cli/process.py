"""What all serving commands share of their process: exit statuses, signals, and the limit of open files."""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from server.startup.logs import log

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2

SAME_SIGNAL_S = 1.0  # a repetition within this time is ignored: a parent such as make may forward its own signal
LAST_EVENT_S = 2.0  # for aborted or failed streams to write their last event

Announce: TypeAlias = Callable[[str], None]  # prints a line for the user


def raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard one; many shells start with 1,024, few for sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit that they do not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Waits until one of the futures is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def watch_signals() -> asyncio.Future[str]:
    """Resolves to the first signal of SIGTERM or SIGINT by name; another after SAME_SIGNAL_S ends the process."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()
    stopped_at = 0.0

    def on_signal(number: signal.Signals) -> None:
        nonlocal stopped_at
        if not stopped.done():
            stopped_at = loop.time()
            stopped.set_result(number.name)
        elif number.name != stopped.result() or loop.time() - stopped_at > SAME_SIGNAL_S:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stopped


def reload_on_hangup(reload: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Calls `reload` at each SIGHUP, which would end the process otherwise.

    One call follows the other; signals that come during a call cause one more. The caller must hold the task.
    """
    hung_up = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a supervisor blocks it for its servers until here

    async def run() -> None:
        while True:
            await hung_up.wait()
            hung_up.clear()
            try:
                await reload()
            except Exception:  # noqa: BLE001 - the next signal must find its reader
                log.exception("reload_failed")

    return asyncio.create_task(run())
