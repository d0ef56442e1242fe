"""The supervisor of one server process: starts it, restarts it when it ends, and stops it."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping

from engine.interface.background import run_in_background
from engine.interface.python_process import python_command, same_modules
from server.startup.logs import log

FIRST_DELAY_S = 1.0  # before the first restart; doubled each time
LONGEST_DELAY_S = 30.0
STEADY_S = 60.0  # a server that has run for this long is restarted without a longer delay
COMMAND = python_command("-m", "server.cli.replica")


class NeverReady(Exception):
    """A server ended before it was ready for the first time."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"replica {name} has ended with status {status} before it was ready")
        self.status = status


class Supervisor:
    """Runs a server as a child process. Its methods are called in the event loop.

    The process has a session of its own, so that Ctrl-C reaches the router alone. It ends when its standard input does,
    a pipe from this process, however that ends.
    """

    def __init__(
        self, name: str, environment: Mapping[str, str], *,
        folder: str | None = None, processors: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        """The settings of the server are in `environment`.

        Args:
            folder: its working directory; None: the present one.
            processors: to which it is kept; None: those of this process.
        """
        self._name = name
        self._environment = environment
        self._folder = folder
        self._processors = processors
        self._process: subprocess.Popen[bytes] | None = None
        self._exited: asyncio.Future[int] | None = None
        self._stopping = asyncio.Event()
        self.has_been_ready = False  # so its settings and its model are good, and `run` restarts it

    @property
    def pid(self) -> int | None:
        """The id of the process while it runs."""
        is_running = self._exited is not None and not self._exited.done()
        return self._process.pid if is_running and self._process is not None else None

    def start(self) -> asyncio.Future[int]:
        """Starts the process; the future resolves to its exit status and must not be cancelled."""
        with _sighup_blocked(), _kept_to(self._processors):
            process = self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                env=same_modules(self._environment),
                cwd=self._folder,
                start_new_session=True,
            )
        try:
            exited = self._exited = run_in_background(process.wait, name="supervisor")
        except RuntimeError:  # the system gives no thread; nobody would watch the process
            process.kill()
            process.communicate()
            raise
        assert process.stdin is not None
        close = process.stdin.close
        exited.add_done_callback(lambda _: close())
        return exited

    async def run(self) -> None:
        """Starts the process, and again with a growing delay whenever it has ended, until `terminate` or `stop`.

        Raises NeverReady where it has ended before it was ready, OSError where it could not be started.
        """
        clock, delay = asyncio.get_running_loop().time, FIRST_DELAY_S
        while not self._stopping.is_set():
            began = clock()
            try:
                status: int | str = await asyncio.shield(self.start())
            except (OSError, RuntimeError) as error:  # there may be memory, file descriptors and threads later
                if not self.has_been_ready:
                    raise
                status = str(error)
            if self._stopping.is_set():
                return
            if not self.has_been_ready:
                assert isinstance(status, int)
                raise NeverReady(self._name, status)
            delay = FIRST_DELAY_S if clock() - began > STEADY_S else min(2 * delay, LONGEST_DELAY_S)
            log.error("replica_ended", replica=self._name, status=status, starts_again_in=delay)
            await asyncio.sleep(delay)

    def send_signal(self, number: signal.Signals) -> None:
        """Passes a signal on to the process; does nothing where it has ended."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the process, which `run` then restarts."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Lets the server end its streams and then itself. It is not restarted."""
        if not self._stopping.is_set():  # a second SIGTERM would end it at once
            self._stopping.set()
            self.send_signal(signal.SIGTERM)

    async def stop(self, seconds: float) -> None:
        """Terminates the process, kills it if it still runs after `seconds`, and waits for its end."""
        self.terminate()
        if self._exited is None:
            return
        await asyncio.wait((self._exited,), timeout=seconds)
        if not self._exited.done():
            log.warning("replica_killed", replica=self._name)
            self.kill()
            await asyncio.wait((self._exited,))


@contextlib.contextmanager
def _sighup_blocked() -> Iterator[None]:
    """Blocks SIGHUP for the processes that are started meanwhile. A server unblocks it when it can reload its keys
    (`reload_on_hangup`); before that the signal would end it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        if signal.SIGHUP not in before:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


@contextlib.contextmanager
def _kept_to(processors: frozenset[int] | None) -> Iterator[None]:
    """Keeps this thread to processors, which a process that it starts inherits with all of its threads."""
    if processors is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        with contextlib.suppress(OSError):  # they may be off by now
            os.sched_setaffinity(0, processors)
        yield
    finally:
        os.sched_setaffinity(0, before)
