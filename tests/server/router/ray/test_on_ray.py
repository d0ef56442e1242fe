"""`eagre deploy` with the real model, two replicas on a Ray of their own: with EAGRE_FULL=1, where Ray is installed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest

from benchmarks.serving.server_process import free_port
from benchmarks.serving.stream_client import StreamLost, stream_completion
from tests.thoroughness import IS_FULL

pytestmark = pytest.mark.skipif(not IS_FULL or find_spec("ray") is None, reason="wants EAGRE_FULL=1 and Ray")

ROOT = Path(__file__).parents[4]
COMMAND = (sys.executable, "-m", "server", "deploy")
SETTINGS = ("--max-num-seqs", "16", "--max-model-len", "2048", "--num-pages", "512", "--log-level", "warning")
NUM_STREAMS = 12
PROMPTS = ("Once upon a time", "Die Gezeiten", "def tide(moon):", "My favourite animal is")
KEY, NEW_KEY = "a-client-of-this-harbour", "a-later-client-of-it"
HEADERS = {"Authorization": f"Bearer {KEY}"}
SHARED = "The harbour master keeps a log of every tide, of every ship and of every lamp on the pier. " * 8


def seeded(seed: int, num_tokens: int = 24) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[seed % len(PROMPTS)], "seed": seed, "max_tokens": num_tokens, "temperature": 0.9,
        "ignore_eos": True,
    }  # fmt: skip


class Deployed(NamedTuple):
    url: str  # of the front
    process: subprocess.Popen[bytes]
    keys: Path  # the file of the clients' keys


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY} harbour\n")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "EAGRE_THREADS": "1"}
    command = [*COMMAND, "--replicas", "2", "--replica-cpus", "0.5", "--port", str(port), *SETTINGS]
    command += ["--api-key-file", str(keys)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        deadline = time.monotonic() + 480
        while asyncio.run(status(url)) != 200:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield Deployed(url, process, keys)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert not children(), "a server outlives its deployment"


@pytest.fixture
def front(deployed: Deployed) -> str:
    return deployed.url


async def status(url: str) -> int:
    try:
        async with aiohttp.ClientSession() as session, session.get(url + "/readiness") as response:
            return response.status
    except aiohttp.ClientError:
        return 0


def children() -> list[int]:
    """The servers that replicas have placed."""
    found = subprocess.run(["pgrep", "-f", "server.cli.replica"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


async def health(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url + "/health") as response:
        return orjson.loads(await response.read())


async def each_replica(session: aiohttp.ClientSession, url: str) -> list[aiohttp.ClientSession]:
    """A client of each replica, past the front."""
    addresses = [replica["address"] for replica in (await health(session, url))["replicas"].values()]
    return [
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(each.removeprefix("unix:")), headers=HEADERS)
        for each in addresses
    ]


def new_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=240)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0), headers=HEADERS)


async def test_both_replicas_and_the_front_give_the_same_text(front: str) -> None:
    async with new_session() as session:
        await both_are_ready(session, front)
        clients = await each_replica(session, front)
        for seed in range(4):
            wanted = await stream_completion(session, front, seeded(seed))
            assert wanted.usage["completion_tokens"] == 24
            assert {(await stream_completion(client, "http://localhost", seeded(seed))).text for client in clients} == {
                wanted.text
            }
        for client in clients:
            await client.close()


async def test_a_client_that_leaves_ends_its_request(front: str) -> None:
    async with new_session() as session:
        await asyncio.gather(*(stream_completion(session, front, seeded(seed, 900), cut_after=3) for seed in range(8)))
        deadline = time.monotonic() + 20
        while any(each["health"]["num_streams"] for each in (await health(session, front))["replicas"].values()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


async def test_keys_that_are_read_again_count_in_every_replica(deployed: Deployed) -> None:
    later = {"Authorization": f"Bearer {NEW_KEY}"}
    async with new_session() as session:
        clients = [(session, deployed.url)]
        clients += [(client, "http://localhost") for client in await each_replica(session, deployed.url)]

        async def answers() -> list[int]:
            asked = [client.get(url + "/v1/models", headers=later) for client, url in clients]
            return [answer.status for answer in await asyncio.gather(*asked)]

        assert await answers() == [401, 401, 401]
        deployed.keys.write_text(f"{KEY} harbour\n{NEW_KEY} harbour\n")
        deployed.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while await answers() != [200, 200, 200]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        for client, _ in clients:
            await client.close()


async def test_prompts_with_one_beginning_find_it_in_the_cache(front: str) -> None:
    async with new_session() as session:
        answers = [
            await stream_completion(session, front, {"prompt": f"{SHARED}Entry {number}: the", "max_tokens": 4})
            for number in range(5)
        ]
        assert min(answer.num_cached_tokens for answer in answers[1:]) > 0.7 * answers[0].usage["prompt_tokens"]


async def test_resumable_streams_survive_the_server_that_makes_them(front: str) -> None:
    async with new_session() as session:
        bodies = [seeded(seed, 96) for seed in range(NUM_STREAMS)]
        wanted = await asyncio.gather(*(stream_completion(session, front, body) for body in bodies))
        streams = [
            asyncio.create_task(stream_completion(session, front, {**body, "resumable": True})) for body in bodies
        ]
        await asyncio.sleep(2)
        assert not any(stream.done() for stream in streams)
        os.kill(children()[0], signal.SIGKILL)
        got = await asyncio.gather(*streams)
        assert [answer.text for answer in got] == [answer.text for answer in wanted]
        assert [answer.finish_reasons for answer in got] == [["length"]] * NUM_STREAMS
        await both_are_ready(session, front)


async def test_an_update_under_load_loses_no_stream(deployed: Deployed) -> None:
    front = deployed.url
    async with new_session() as session:
        await both_are_ready(session, front)
        before = set(children())
        wanted = [(await stream_completion(session, front, seeded(seed))).text for seed in range(4)]
        is_over = asyncio.Event()
        outcomes: Counter[str] = Counter()

        async def client(number: int) -> None:
            turn = number
            while not is_over.is_set():
                try:
                    answer = await stream_completion(session, front, seeded(turn % 4))
                    outcomes["whole" if answer.text == wanted[turn % 4] else answer.text] += 1
                except StreamLost as lost:
                    outcomes[str(lost)] += 1
                turn += 1

        clients = [asyncio.create_task(client(number)) for number in range(4)]
        command = [*COMMAND, "--update", "--replicas", "2", "--replica-cpus", "0.5", *SETTINGS, "--seed", "1"]
        command += ["--api-key-file", str(deployed.keys)]
        environment = {**os.environ, "EAGRE_THREADS": "1"}
        update = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment)
        try:
            assert await asyncio.wait_for(update.wait(), 400) == 0
            await both_are_ready(session, front)
        finally:
            is_over.set()
            await asyncio.gather(*clients)
        assert set(outcomes) == {"whole"}, outcomes
        assert before.isdisjoint(children())


async def both_are_ready(session: aiohttp.ClientSession, url: str) -> None:
    deadline = time.monotonic() + 240
    while True:
        replicas = (await health(session, url))["replicas"].values()
        if sum(replica["state"] == "ready" and not replica["is_leaving"] for replica in replicas) == 2:
            return
        assert time.monotonic() < deadline, replicas
        await asyncio.sleep(0.5)
