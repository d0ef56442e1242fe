"""One of the servers as a process: started, started again where it dies, and ended with the front."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator, Mapping

from server.startup.logs import log

FIRST_DELAY_S = 1.0  # before a server that has died is started again; doubled each time
LONGEST_DELAY_S = 30.0
STEADY_S = 60.0  # a server that has run for so long is started again without a longer delay
COMMAND = (sys.executable, "-P", "-m", "server.cli.replica")


class NeverReady(Exception):
    """A server ended before it was ready for the first time."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"replica {name} has ended with status {status} before it was ready")
        self.status = status


class ReplicaProcess:
    """The process has a session of its own, so that Ctrl-C reaches the front alone. It ends when its standard input
    does, which is a pipe from this process: so it never outlives the front, however that ends.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._environment = environment
        self._process: Process | None = None
        self._ending = asyncio.Event()
        self.is_proven = False  # it was ready once, so its settings and its model are good

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def keep_running(self) -> None:
        """Starts the server, and again whenever it has died.

        Raises:
            NeverReady: it has ended before it was ready for the first time.
        """
        clock, delay = asyncio.get_running_loop().time, FIRST_DELAY_S
        while not self._ending.is_set():
            began = clock()
            try:
                with _hangups_held():
                    self._process = await asyncio.create_subprocess_exec(
                        *COMMAND, stdin=PIPE, env=self._environment, start_new_session=True
                    )
                status: int | str = await self._process.wait()
            except OSError as error:  # there is no memory or no file descriptor now; there may be later
                if not self.is_proven:
                    raise
                status = str(error)
            if self._ending.is_set():
                return
            if not self.is_proven:
                assert isinstance(status, int)
                raise NeverReady(self._name, status)
            delay = FIRST_DELAY_S if clock() - began > STEADY_S else min(2 * delay, LONGEST_DELAY_S)
            log.error("replica_ended", replica=self._name, status=status, starts_again_in=delay)
            await asyncio.sleep(delay)

    def terminate(self) -> None:
        """Lets the server end its streams and then itself. It is not started again."""
        self._ending.set()
        self._signal(Process.terminate)

    def send_signal(self, number: int) -> None:
        """Passes a signal on."""
        self._signal(lambda process: process.send_signal(number))

    def kill(self) -> None:
        """Ends the process at once; `keep_running` starts it again."""
        self._signal(Process.kill)

    async def wait_ended(self, seconds: float) -> None:
        """Returns when the process is no more, which is `seconds` from now at the latest."""
        self._ending.set()
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            log.warning("replica_killed", replica=self._name)
            self._signal(Process.kill)
            await process.wait()

    def _signal(self, send: Callable[[Process], None]) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                send(self._process)


@contextlib.contextmanager
def _hangups_held() -> Iterator[None]:
    """A process that is started meanwhile gets no SIGHUP until it takes it (`reload_on_hangup`).

    A server reads keys again at that signal, and until it has got so far the signal would end it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        if signal.SIGHUP not in before:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
