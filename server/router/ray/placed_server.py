"""One server that a replica has placed on its machine: how it is started, asked and stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from server.admission.probes import LIVENESS, READINESS
from server.router.ray.autoscaling import ReplicaLoad
from server.router.replica import UNIX

START_INTERVAL_S = 0.2
ANSWER_WITHIN_S = 5.0
PROGRAM = (sys.executable, "-P", "-m", "server.cli.replica")


class ServerUnwell(RuntimeError):
    """The server has ended, does not answer, or says that it cannot serve; the message tells which."""


class PlacedServer:
    """`eagre serve` in a process of its own, which ends when this one does."""

    def __init__(
        self, address: str, environment: Mapping[str, str], folder: str, num_slots: int, front_key: str
    ) -> None:
        """Starts the process.

        Args:
            address: where it shall listen: unix:/path or http://host:port.
            environment: its settings as variables, without those of the address.
            folder: where relative paths among the settings begin; its own folder if there is none of this name here.
            num_slots: requests that it can run at once.
            front_key: by which it knows its front, and tells it its figures.
        """
        self.address = address
        self._num_slots = num_slots
        self._key = front_key
        self._process = subprocess.Popen(
            PROGRAM,
            stdin=subprocess.PIPE,
            env={**os.environ, **environment, **_listening(address), "EAGRE_FRONT_KEY": front_key},
            cwd=folder if Path(folder).is_dir() else None,
            start_new_session=True,  # Ctrl-C in a terminal is for the front, which then stops the replicas in order
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def wait_ready(self) -> None:
        """
        Raises:
            ServerUnwell: the process has ended.
        """
        while True:
            self._check_process()
            try:
                if (await self._ask(READINESS))[0] == 200:
                    return
            except (OSError, TimeoutError, aiohttp.ClientError):  # it does not listen yet
                pass
            await asyncio.sleep(START_INTERVAL_S)

    async def check(self) -> None:
        """
        Raises:
            ServerUnwell: the process has ended, does not answer, is not alive or not ready.
        """
        self._check_process()
        for path in (LIVENESS, READINESS):
            try:
                status, body = await self._ask(path)
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                raise ServerUnwell(f"{self.address} does not answer {path}: {error!r}") from error
            if status != 200:
                said = body.get("detail", body.get("status"))
                raise ServerUnwell(f"{self.address} answers {path} with {status}: {said}")

    async def load(self) -> ReplicaLoad:
        """What it has to do at this moment.

        Raises:
            ServerUnwell: it does not say.
        """
        try:
            _, body = await self._ask("/health")
            stats = [model["stats"] for model in body["models"].values() if "stats" in model]
        except (OSError, TimeoutError, aiohttp.ClientError, KeyError) as error:
            raise ServerUnwell(f"{self.address} does not say how much it has to do: {error!r}") from error
        return ReplicaLoad(
            float(sum(each["num_waiting_tokens"] for each in stats)),
            sum(each["num_running"] for each in stats) / self._num_slots,
        )

    def reload(self) -> None:
        """Has it read its keys again. Only for a server that was ready: before that the signal would end it."""
        self._process.send_signal(signal.SIGHUP)  # does nothing where the process has ended

    async def stop(self, seconds: float) -> None:
        """Lets running streams end, and returns when the process has.

        Args:
            seconds: after which the process is killed.
        """
        if self._process.poll() is None:
            self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.to_thread(self._remove_socket)

    def wait_end(self) -> int:
        """Blocks until the process has ended; returns its exit status."""
        status = self._process.wait()
        self._remove_socket()
        return status

    def _remove_socket(self) -> None:
        if self.address.startswith(UNIX):
            folder = Path(self.address.removeprefix(UNIX)).parent
            shutil.rmtree(folder, ignore_errors=True)  # it was made for the socket

    def _check_process(self) -> None:
        status = self._process.poll()
        if status is not None:
            raise ServerUnwell(f"the server at {self.address} has ended with status {status}; its log tells why")

    async def _ask(self, path: str) -> tuple[int, dict[str, Any]]:
        connector: aiohttp.BaseConnector
        if self.address.startswith(UNIX):
            connector, root = aiohttp.UnixConnector(self.address.removeprefix(UNIX)), "http://localhost"
        else:
            connector, root = aiohttp.TCPConnector(), self.address
        headers = {"Authorization": f"Bearer {self._key}"}
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session,
            session.get(root + path) as response,
        ):
            body = _object(await response.read())
            return response.status, body


def _object(body: bytes) -> dict[str, Any]:
    """
    Raises:
        aiohttp.ClientPayloadError: it is no JSON object, so another program listens there.
    """
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise aiohttp.ClientPayloadError(f"the answer is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise aiohttp.ClientPayloadError("the answer is no JSON object")
    return read


def free_port(host: str) -> int:
    """A port at which nobody listens at this moment. Where somebody is faster, the server ends, and Ray tries again."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _listening(address: str) -> dict[str, str]:
    if address.startswith(UNIX):
        return {"EAGRE_UDS": address.removeprefix(UNIX)}
    host, _, port = address.removeprefix("http://").rpartition(":")
    return {"EAGRE_HOST": host.strip("[]"), "EAGRE_PORT": port}
