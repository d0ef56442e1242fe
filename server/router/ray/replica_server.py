"""The server process of a Ray replica: its start, its health, its load and its end."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from server.admission.probes import LIVENESS, READINESS
from server.router.local.supervisor import Supervisor
from server.router.ray.autoscaling import ReplicaLoad
from server.router.replica import UNIX, Replica, ReplicaLost, read_whole

START_INTERVAL_S = 0.2
ANSWER_WITHIN_S = 5.0


class ServerUnwell(RuntimeError):
    """The server has ended, does not answer, or says that it cannot serve; the message tells which."""


class ReplicaServer:
    """`eagre serve` as a child process, which is not restarted: Ray replaces the whole replica."""

    def __init__(
        self, address: str, environment: Mapping[str, str], folder: str, num_slots: int, front_key: str
    ) -> None:
        """Starts the process, with settings as variables, to listen at unix:/path or http://host:port.

        It runs `num_slots` requests at once, in `folder` if this machine has it; `front_key` shows its health in full.
        """
        self.address = address
        self._num_slots = num_slots
        self._headers = {"Authorization": f"Bearer {front_key}"}
        self._client = Replica(address, address)
        self._supervisor = Supervisor(
            address,
            {**os.environ, **environment, **_listening(address), "EAGRE_FRONT_KEY": front_key},
            folder=folder if Path(folder).is_dir() else None,
        )
        self.exited = self._supervisor.start()  # resolves to the exit status

    async def wait_ready(self) -> None:
        """Raises `ServerUnwell` where the process ends before."""
        while True:
            self._check_process()
            try:
                if (await self._get(READINESS))[0] == 200:
                    return
            except ReplicaLost:  # it does not listen yet
                pass
            await asyncio.sleep(START_INTERVAL_S)

    async def check(self) -> None:
        """Raises `ServerUnwell` where the process has ended, does not answer, is not alive or not ready."""
        self._check_process()
        for path in (LIVENESS, READINESS):
            try:
                status, body = await self._get(path)
            except ReplicaLost as error:
                raise ServerUnwell(f"{self.address} does not answer {path}: {error}") from error
            if status != 200:
                detail = body.get("detail", body.get("status"))
                raise ServerUnwell(f"{self.address} answers {path} with {status}: {detail}")

    async def load(self) -> ReplicaLoad:
        """Raises `ServerUnwell` where it does not answer."""
        try:
            _, body = await self._get("/health")
            stats = [model["stats"] for model in body["models"].values() if "stats" in model]
        except (ReplicaLost, KeyError) as error:
            raise ServerUnwell(f"{self.address} does not say how much it has to do: {error!r}") from error
        return ReplicaLoad(
            float(sum(each["num_waiting_tokens"] for each in stats)),
            sum(each["num_running"] for each in stats) / self._num_slots,
        )

    def reload(self) -> None:
        self._supervisor.send_signal(signal.SIGHUP)

    async def stop(self, seconds: float) -> None:
        """Lets running streams end, and returns when the process has, which is killed after `seconds`."""
        await self._supervisor.stop(seconds)
        await self._client.close()
        self.remove_socket()

    def remove_socket(self) -> None:
        """Removes the folder that was made for the Unix socket, once the process has ended."""
        if self.address.startswith(UNIX):
            shutil.rmtree(Path(self.address.removeprefix(UNIX)).parent, ignore_errors=True)

    def _check_process(self) -> None:
        if self.exited.done():
            raise ServerUnwell(
                f"the server at {self.address} has ended with status {self.exited.result()}; its log tells why"
            )

    async def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        """The status and the body of an answer. Raises `ReplicaLost` where there is none in time, or it is not a JSON
        object, so that another program listens there.
        """
        if self.exited.done():  # and `stop` has closed the client
            raise ReplicaLost("the process has ended", was_sent=False)
        try:
            async with (
                asyncio.timeout(ANSWER_WITHIN_S),
                self._client.request("GET", path, headers=self._headers) as answer,
            ):
                status, body = answer.status, orjson.loads(await read_whole(answer, self.address))
        except TimeoutError as error:
            raise ReplicaLost("it is silent", was_sent=True) from error
        except orjson.JSONDecodeError as error:
            raise ReplicaLost(f"the answer is no JSON: {error}", was_sent=True) from error
        if not isinstance(body, dict):
            raise ReplicaLost("the answer is no JSON object", was_sent=True)
        return status, body


def free_port(host: str) -> int:
    """A port at which nothing listens now. Where another program is faster, the server ends, and Ray tries again."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _listening(address: str) -> dict[str, str]:
    if address.startswith(UNIX):
        return {"EAGRE_UDS": address.removeprefix(UNIX)}
    host, _, port = address.removeprefix("http://").rpartition(":")
    return {"EAGRE_HOST": host.strip("[]"), "EAGRE_PORT": port}
