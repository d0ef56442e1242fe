"""`eagre serve --data-parallel 2` with the tiny model: a server is killed under running streams, and then the front."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.serving.server_process import eagre_command, free_port
from tests.model_folders import write_folder
from tests.server.conftest import Address, eventually
from tests.server.support.resumable import Follower
from tests.server.support.server_process import SETTINGS

START_S = 200.0
NUM_STREAMS = 6
BODY = {"prompt": [7, 300, 41], "max_tokens": 100, "ignore_eos": True, "temperature": 1.0}


@contextmanager
def front(model: Path, cache: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a front with two servers, and its process."""
    port = free_port()
    settings = [setting if setting != "64" else "128" for setting in SETTINGS]
    command = eagre_command(port, ["--model", str(model), *settings, "--data-parallel", "2"])
    environment = {**os.environ, "EAGRE_CACHE": str(cache), "EAGRE_THREADS": "2"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield f"http://127.0.0.1:{port}", process
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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks up processes as Linux shows them")
async def test_streams_outlive_a_killed_server_and_no_server_its_front(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny")
    with front(model, tmp_path / "cache") as (url, process):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(START_S)) as http:
            address = Address(url, http)

            async def ready(num_replicas: int) -> None:
                async with asyncio.timeout(START_S):
                    while process.poll() is None:
                        try:
                            told = (await address.get("/readiness"))[1]
                            if told["status"] == "ready" and told["detail"].startswith(f"{num_replicas} of"):
                                return
                        except aiohttp.ClientError:
                            pass
                        await asyncio.sleep(0.1)

            await ready(2)
            wanted = [await seeded(address, seed) for seed in range(NUM_STREAMS)]
            followers = [Follower(address) for _ in range(NUM_STREAMS)]
            reading = [
                asyncio.ensure_future(follower.begin("/v1/completions", {**BODY, "seed": seed}))
                for seed, follower in enumerate(followers)
            ]
            await eventually(lambda: any(follower.data for follower in followers))
            health = (await address.get("/health"))[1]
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
            await eventually(lambda: not any(is_alive(pid) for pid in left), seconds=60)


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
