"""The replica source of `--data-parallel`: server processes on this machine, which listen on Unix sockets."""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from server.router.local.memory_nodes import processors_of_each
from server.router.local.replica_settings import (
    VISIBLE_GPUS,
    check_shared,
    environment_of,
    gpu_of_each,
    settings_of_replica,
    socket_of,
)
from server.router.local.supervisor import NeverReady, Supervisor
from server.router.replica import UNIX
from server.router.replicas import CHECK_S, POLL_S, Replicas, SourceFailed
from server.startup.logs import log
from server.startup.settings import ServerSettings

END_S = 10.0  # for servers to end once their streams have
# A server that leaves so many health checks unanswered, `HEALTH_S` each, is killed: after about a minute. It has lost
# its streams long before, so it is left the time in which a machine that swaps, or a debugger, may let it go on.
MOST_FROZEN = 12
EXIT_FAILURE, EXIT_USAGE = 1, 2  # of a server


class LocalReplicas:
    """`settings.data_parallel` servers, each under a supervisor."""

    def __init__(self, settings: ServerSettings, environment: Mapping[str, str], folder: Path) -> None:
        """Starts nothing yet; `folder` is that of the servers' sockets, which no other user can enter.

        Raises SettingsError: a setting is for one server alone, or there are fewer GPUs than servers.
        """
        check_shared(settings)
        num_replicas = settings.data_parallel
        gpus = gpu_of_each(num_replicas, environment)
        self.description = f"{num_replicas} replicas"
        self._addresses = {str(index): f"{UNIX}{socket_of(folder, index)}" for index in range(num_replicas)}
        self._supervisors: dict[str, Supervisor] = {}
        for index, processors in enumerate(processors_of_each(num_replicas)):
            of_replica = environment_of(settings_of_replica(settings, index, folder), num_replicas, environment)
            if gpus is not None:
                of_replica[VISIBLE_GPUS] = gpus[index]
            self._supervisors[str(index)] = Supervisor(str(index), of_replica, processors=processors)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, replicas: Replicas) -> None:
        """Starts the first server, and the others once it is ready: they find what it has downloaded and compiled.

        Raises SourceFailed where one has ended before.
        """
        replicas.update(self._addresses)
        self._run(restart_frozen(self._supervisors, replicas))
        first, *others = self._supervisors
        for names in ([first], others):
            for name in names:
                self._run(self._supervisors[name].run())
            while not all(replica.has_been_ready for replica in replicas if replica.name in names):
                self._check_running()
                await asyncio.sleep(POLL_S)
            for name in names:
                self._supervisors[name].has_been_ready = True

    async def reload(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.send_signal(signal.SIGHUP)

    def drain(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.terminate()

    async def stop(self) -> None:
        await asyncio.gather(*(supervisor.stop(END_S) for supervisor in self._supervisors.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, running: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(running)
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    def _check_running(self) -> None:
        for task in self._tasks:
            if task.done():
                try:
                    task.result()
                except NeverReady as error:
                    status = EXIT_USAGE if error.status == EXIT_USAGE else EXIT_FAILURE
                    raise SourceFailed(str(error), status) from error


def _log_failure(task: asyncio.Task[None]) -> None:
    """Logs why a task has ended: once the router is ready nobody awaits it, and nothing restarts its server."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("supervision_ended", reason=str(error), exc_info=None if isinstance(error, NeverReady) else error)


async def restart_frozen(supervisors: Mapping[str, Supervisor], replicas: Replicas) -> None:
    """Kills servers that stay frozen, so that their supervisors restart them. It never returns."""
    while True:
        for replica in replicas:
            supervisor = supervisors.get(replica.name)
            if supervisor is not None and supervisor.has_been_ready and replica.num_unanswered >= MOST_FROZEN:
                log.error("replica_frozen", replica=replica.name, detail=replica.detail)
                supervisor.kill()
                replica.num_unanswered = 0
        await asyncio.sleep(CHECK_S)
