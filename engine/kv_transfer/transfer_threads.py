"""Threads that move pages between the device's copies and a connector, so that the engine thread never waits."""

import logging
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine.interface.background import stand_back
from engine.kv_transfer.kv_connector import DevicePage, KVConnector, PageDevice
from engine.kv_transfer.prefetch_job import PrefetchJob

_NUM_READERS = 2
_REFRESH_SECONDS = 10.0  # without anything to store
_BUSY_REFRESH_SECONDS = 60.0  # a look at a large folder takes a while

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A page that was requested, or the news that it is unavailable."""

    job: PrefetchJob
    index: int
    page: DevicePage | None  # None: it cannot be had


class TransferThreads:
    """One thread that stores, at lower priority, and two that load."""

    def __init__(self, device: PageDevice, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        """Starts the threads; a loading one calls `wake` when something has arrived."""
        self.connector: KVConnector | None = None  # None until it is open
        self.arrived: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self.num_stored = 0  # pages
        self.refused_at = -math.inf  # seconds on the clock, when the connector last could not store
        self._device = device
        self._wake = wake
        self._clock = clock
        self._wanted: Callable[[], KVConnector] | None = None  # makes the connector that is to be open
        self._load_requests: queue.SimpleQueue[tuple[PrefetchJob, int] | None] = queue.SimpleQueue()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._storing = threading.Thread(target=self._run_tasks, name="eagre-pages-out", daemon=True)
        try:
            self._storing.start()
            for _ in range(_NUM_READERS):
                threading.Thread(target=self._load, name="eagre-pages-in", daemon=True).start()
        except BaseException:  # the system gives no more threads; those that it gave would hold the device for ever
            self._end_threads()
            raise

    # ---------------------------------------------------------------- called by the engine thread

    @property
    def num_tasks(self) -> int:
        """Tasks that wait for the storing thread."""
        return self._tasks.qsize()

    def open(self, make: Callable[[], KVConnector]) -> None:
        """Switches to another connector. Until it is made, which may take long, there is none."""
        self.connector, self._wanted = None, make

        def task() -> None:
            try:
                connector = make()
            except OSError as error:
                _log.warning("cached prefixes are not kept: %s", error)
                return
            if self._wanted is make:
                self.connector = connector

        self.submit(task)

    def wait_for_tasks(self, seconds: float) -> None:
        """Waits at most so long until the tasks that were submitted are done."""
        are_done = threading.Event()
        self.submit(are_done.set)
        are_done.wait(seconds)

    def request_load(self, job: PrefetchJob, index: int) -> None:
        """Has a page of a job loaded."""
        self._load_requests.put((job, index))

    def submit(self, task: Callable[[], None]) -> None:
        """Has a task run by the storing thread, after all earlier ones."""
        self._tasks.put(task)

    def store(self, connector: KVConnector, name: bytes, page: DevicePage) -> None:
        """Has a copy of a page stored."""

        def task() -> None:
            if connector.store(name, self._device.to_host(page)):
                self.num_stored += 1
            else:
                self.refused_at = self._clock()

        self.submit(task)

    def close(self, join_seconds: float) -> None:
        """Ends the threads once all is stored that was given to them, and waits for that at most so long."""
        self._end_threads()
        self._storing.join(join_seconds)

    def _end_threads(self) -> None:
        self._tasks.put(None)
        for _ in range(_NUM_READERS):
            self._load_requests.put(None)

    # ---------------------------------------------------------------- the threads

    def _run_tasks(self) -> None:
        stand_back()
        looked_at = self._clock()
        while True:
            is_idle = False
            try:
                task = self._tasks.get(timeout=_REFRESH_SECONDS)
                if task is None:
                    return
                _attempt(task)
            except queue.Empty:
                is_idle = True
            if self.connector is not None and (is_idle or self._clock() - looked_at > _BUSY_REFRESH_SECONDS):
                looked_at = self._clock()
                _attempt(self.connector.refresh)

    def _load(self) -> None:
        while True:
            asked = self._load_requests.get()
            if asked is None:
                return
            job, index = asked
            page: DevicePage | None = None
            if job.is_active and job.connector is not None:
                try:
                    content = job.connector.load(job.names[index].hash_value)
                    page = None if content is None else self._device.to_device(content)
                except (OSError, MemoryError, RuntimeError):
                    _log.exception("a kept page was not loaded")
            self.arrived.put(Arrival(job, index, page))
            self._wake()


def _attempt(task: Callable[[], None]) -> None:
    try:
        task()
    except (OSError, MemoryError, RuntimeError):  # JAX's errors are RuntimeErrors
        _log.exception("what was to be done with kept pages has failed")
