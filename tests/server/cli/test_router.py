"""`eagre serve --data-parallel 2` with the tiny model: its doors; a server is killed under running streams, and then
the front. A server that is frozen is started again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.serving.server_process import eagre_command, free_port
from server.router.local.source import MOST_FROZEN, restart_frozen
from server.router.local.supervisor import Supervisor
from server.router.replicas import Replicas
from tests.model_folders import write_folder
from tests.patience import PROCESS_S
from tests.server.admission.test_certificate import make_certificate, needs_openssl
from tests.server.conftest import Address, eventually
from tests.server.support.resumable import Follower
from tests.server.support.server_process import SETTINGS

NUM_STREAMS = 6
BODY = {"prompt": [7, 300, 41], "max_tokens": 100, "ignore_eos": True, "temperature": 1.0}


KEY, NEW_KEY, ADMIN = "a-client-of-this-test", "a-later-client-of-it", "an-operator-of-this-test"


@contextmanager
def front(model: Path, cache: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a front with two servers, and its process."""
    port = free_port()
    command = eagre_command(port, ["--model", str(model), *SETTINGS, "--data-parallel", "2", *flags])
    environment = {**os.environ, "EAGRE_CACHE": str(cache), "EAGRE_THREADS": "2"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield f"https://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def children_of(pid: int) -> list[int]:
    """The processes that this one has started (Linux)."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(status.parent.name))
    return sorted(found)


@needs_openssl
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks up processes as Linux shows them")
async def test_streams_outlive_a_killed_server_and_no_server_its_front(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny")
    certificate, key = make_certificate(tmp_path, "localhost")
    keys, store, metrics_port = tmp_path / "keys", tmp_path / "store", free_port()
    keys.write_text(f"{KEY} shop\n")
    flags = {
        "--ssl-certfile": certificate, "--ssl-keyfile": key, "--api-key-file": keys, "--admin-key": ADMIN,
        "--store": store, "--metrics-port": metrics_port,
    }  # fmt: skip
    with front(model, tmp_path / "cache", *(str(each) for pair in flags.items() for each in pair)) as (url, process):
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(PROCESS_S),
            connector=aiohttp.TCPConnector(ssl=False),  # whose certificate it is, is not the question here
            headers={"Authorization": f"Bearer {KEY}"},
        ) as http:
            address = Address(url, http)
            metrics = Address(f"https://127.0.0.1:{metrics_port}", http)

            async def ready(num_replicas: int) -> None:
                async with asyncio.timeout(PROCESS_S):
                    while process.poll() is None:
                        try:
                            told = (await address.get("/readiness"))[1]
                            if told["status"] == "ready" and told["detail"].startswith(f"{num_replicas} of"):
                                return
                        except aiohttp.ClientError:
                            pass
                        await asyncio.sleep(0.1)

            await eventually(lambda: len(children_of(process.pid)) == 1)
            process.send_signal(signal.SIGHUP)  # which ends no server that is still being loaded
            await ready(2)
            await doors_hold(address, metrics, process, keys)
            assert {path.name for path in tmp_path.glob("store.?")} == {"store.0", "store.1"}
            wanted = [await seeded(address, seed) for seed in range(NUM_STREAMS)]
            followers = [Follower(address) for _ in range(NUM_STREAMS)]
            reading = [
                asyncio.ensure_future(follower.begin("/v1/completions", {**BODY, "seed": seed}))
                for seed, follower in enumerate(followers)
            ]
            await eventually(lambda: any(follower.data for follower in followers))
            health = (await metrics.get("/health"))[1]
            assert set(health["replicas"]) == {"0", "1"}
            killed = children_of(process.pid)
            assert len(killed) == 2
            os.kill(killed[0], signal.SIGKILL)
            await asyncio.gather(*reading)
            assert all(follower.is_done for follower in followers)
            assert [follower.text() for follower in followers] == wanted
            await ready(2)  # the dead one was started again
            left = children_of(process.pid)
            process.send_signal(signal.SIGKILL)
            process.wait()
            await eventually(lambda: not any(is_alive(pid) for pid in left))


# Answers one look at its health and is frozen then; started again, it answers all of them.
FREEZING = """
import socket, sys, time
from pathlib import Path
path, mark = Path(sys.argv[1]), Path(sys.argv[2])
path.unlink(missing_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(path))
listener.listen()
is_first = not mark.exists()
mark.touch()
while True:
    connection, _ = listener.accept()
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    while is_first:
        time.sleep(1)
    connection.close()
"""


async def test_a_server_that_stays_frozen_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.replica.HEALTH_S", 0.05)
    monkeypatch.setattr("server.router.replicas.CHECK_S", 0.01)
    monkeypatch.setattr("server.router.local.source.CHECK_S", 0.01)
    monkeypatch.setattr("server.router.local.supervisor.FIRST_DELAY_S", 0.1)
    path = tmp_path / "0.sock"
    command = (sys.executable, "-S", "-c", FREEZING, str(path), str(tmp_path / "mark"))
    monkeypatch.setattr("server.router.local.supervisor.COMMAND", command)
    supervisor = Supervisor("0", os.environ)
    async with Replicas() as replicas:
        replica = replicas.add("0", f"unix:{path}")
        tasks = [asyncio.ensure_future(supervisor.run())]
        try:
            await eventually(lambda: replica.has_been_ready)
            first = supervisor.pid
            tasks.append(asyncio.ensure_future(restart_frozen({"0": supervisor}, replicas)))
            await eventually(lambda: replica.num_unanswered > MOST_FROZEN)
            assert supervisor.pid == first  # nobody ends a server that is still being started
            supervisor.has_been_ready = True
            await eventually(lambda: supervisor.pid not in (first, None) and replica.is_usable)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await supervisor.stop(0.1)


async def doors_hold(address: Address, metrics: Address, process: subprocess.Popen[bytes], keys: Path) -> None:
    """Keys that are read again count in the front and in the servers; metrics need none; operators reach all."""
    http = address.http

    async def status(key: str, path: str = "/v1/completions") -> int:
        body = {**BODY, "max_tokens": 1}
        async with http.post(address.url + path, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            return answer.status

    assert [await status(key) for key in (KEY, NEW_KEY)] == [200, 401]
    keys.write_text(f"{KEY} shop\n{NEW_KEY} later\n")
    process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(PROCESS_S):
        while [await status(NEW_KEY) for _ in range(4)] != [200] * 4:  # each server gets two of them
            await asyncio.sleep(0.1)
    assert await status(NEW_KEY, "/admin/pause") == 403
    for action, state in (("pause", "paused"), ("resume", "running")):
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with http.post(f"{address.url}/admin/{action}", headers=headers) as answer:
            assert (answer.status, (await answer.json())["state"]) == (200, state)
    assert (await address.get("/metrics"))[0] == 404
    async with http.get(metrics.url + "/metrics", headers={"Authorization": "none"}) as answer:
        page = await answer.text()
    assert all(f'eagre_front_replica_ready{{replica="{name}"}} 1.0' in page for name in ("0", "1"))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def seeded(address: Address, seed: int) -> str:
    """What a request of this seed gives, undisturbed."""
    answer: dict[str, Any] = (await address.post("/v1/completions", {**BODY, "seed": seed}))[1]
    text: str = answer["choices"][0]["text"]
    return text
