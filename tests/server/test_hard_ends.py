"""The whole server attacked, killed, frozen and starved: each client sees one end, and the next start is clean."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from benchmarks.chaos.attacks.operators import operators_race
from benchmarks.chaos.leaks import when_idle
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.pauses import Pauses
from benchmarks.chaos.reference_streams import ReferenceStream, undisturbed
from benchmarks.chaos.rounds import Stage
from benchmarks.chaos.server_flags import REFERENCE_KEY, server_flags
from benchmarks.chaos.target import ADMIN_KEY, Target
from tests.model_folders import write_folder
from tests.patience import PATIENCE_S
from tests.server.support.server_process import SETTINGS, ServerProcess
from tests.server.support.sse_reader import SseReader
from tests.thoroughness import IS_FULL

GOLDENS = json.loads((Path(__file__).parents[1] / "golden" / "tiny_llama.json").read_text(encoding="utf-8"))["prompts"]
LONG = {"max_tokens": 1000, "ignore_eos": True}  # of 10 ms each at least
STALL_S = 1.0
CHAOS_S = 60.0 if IS_FULL else 2.0
MIN_ATTACKS = 20
FILE_LIMIT = 8192  # bytes: more than the log has, and less than the largest program


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with as long a context as the attacks' prompts want: each of their characters is a token."""
    folder = write_folder(tmp_path_factory.mktemp("models") / "tiny")
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def survivor(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has started where another one was killed in the middle of its compiles."""
    cache = tmp_path_factory.mktemp("user") / "cache"
    with ServerProcess(model, cache) as killed:
        killed.wait_until(lambda: any(cache.glob("compiled/.private-*/*-cache")))
        killed.send(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    with ServerProcess(model, cache, ("--admin-key", ADMIN_KEY)) as server:
        server.wait_ready()
        yield server


class Ended(NamedTuple):
    """How one stream has ended for its client."""

    num_deltas: int
    errors: list[str]  # messages, or names of the exceptions of a broken connection
    at: float  # time.monotonic


async def read_sse(
    http: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any], begun: asyncio.Event
) -> Ended:
    num_deltas, errors, reader = 0, list[str](), SseReader()
    try:
        async with http.post(url + path, json={**body, **LONG, "stream": True}) as response:
            assert response.status == 200
            async for data in response.content.iter_any():
                for record in reader.feed(data):
                    if record.kind == "data":
                        chunk = json.loads(record.text)
                        assert not errors, "something came after the error"
                        errors += [chunk["error"]["message"]] if "error" in chunk else []
                        num_deltas += "error" not in chunk
                        begun.set()
    except aiohttp.ClientError as error:
        errors.append(type(error).__name__)
    return Ended(num_deltas, errors, time.monotonic())


async def read_socket(http: aiohttp.ClientSession, url: str) -> Ended:
    num_deltas, errors = 0, list[str]()
    async with http.ws_connect(url + "/v1/stream") as socket:
        await socket.send_json({"type": "generate", "id": "a", "prompt": [5], **LONG})
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            frame = json.loads(message.data)
            assert not errors, "something came after the error"
            errors += [frame["error"]["message"]] if frame["type"] == "error" else []
            num_deltas += frame["type"] == "delta"
        errors += ["closed"] if not errors else []
    return Ended(num_deltas, errors, time.monotonic())


async def read_whole(http: aiohttp.ClientSession, url: str) -> Ended:
    try:
        async with http.post(url + "/v1/completions", json={"prompt": [9], **LONG}) as response:
            answer = await response.json()
            return Ended(0, [answer["error"]["message"]], time.monotonic())
    except aiohttp.ClientError as error:
        return Ended(0, [type(error).__name__], time.monotonic())


async def num_waiting(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(url + "/health") as response:
        waiting: int = (await response.json())["stats"]["num_waiting"]
    return waiting


async def end_of_streams(server: ServerProcess, end: signal.Signals) -> tuple[float, list[Ended]]:
    """Opens a stream of each kind, sends a signal while they run, and tells when, and how they ended.

    The first one runs and the others wait: there is one slot.
    """
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as http:
        begun, prompt = asyncio.Event(), {"prompt": [7, 300, 41]}
        tasks = [asyncio.create_task(read_sse(http, server.url, "/v1/completions", prompt, begun))]
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        tasks += [
            asyncio.create_task(read_sse(http, server.url, "/v1/chat/completions", chat, asyncio.Event())),
            asyncio.create_task(read_socket(http, server.url)),
            asyncio.create_task(read_whole(http, server.url)),
        ]
        async with asyncio.timeout(PATIENCE_S):
            while await num_waiting(http, server.url) < len(tasks) - 1:
                await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        server.send(end)
        ended_at = time.monotonic()
        return ended_at, list(await asyncio.gather(*tasks))


async def token_ids(server: ServerProcess) -> list[list[int]]:
    """The greedy tokens for the golden prompts, all at once."""

    async def one(http: aiohttp.ClientSession, prompt: list[int]) -> list[int]:
        found: list[int] = []
        async with http.ws_connect(server.url + "/v1/stream") as socket:
            await socket.send_json(
                {
                    "type": "generate",
                    "id": "a",
                    "prompt": prompt,
                    "max_tokens": 32,
                    "temperature": 0,
                    "ignore_eos": True,
                }
            )
            while (frame := await socket.receive_json(timeout=PATIENCE_S))["type"] != "done":
                assert frame["type"] in ("start", "delta")
                found += frame.get("token_ids", [])
        return found

    async with aiohttp.ClientSession() as http:
        return list(await asyncio.gather(*(one(http, golden["prompt_token_ids"]) for golden in GOLDENS)))


def warnings_in(log: str) -> list[str]:
    return [line for line in log.splitlines() if "warning" in line.lower() and " backends " not in line]


async def test_operators_who_change_the_engine_at_once_lose_no_token(survivor: ServerProcess) -> None:
    ledger = Ledger()
    async with aiohttp.ClientSession() as http:
        targets = [Target(survivor.url, http, random.Random(seed), ledger) for seed in range(3)]
        async with asyncio.timeout(2 * PATIENCE_S):
            await asyncio.gather(*(operators_race(target) for target in targets))
        async with http.get(survivor.url + "/health") as response:
            health = await response.json()
    assert ledger.failures == []
    assert health["stats"]["num_active_pages"] == health["stats"]["compiles_after_ready"] == 0
    assert await token_ids(survivor) == [golden["output_token_ids"] for golden in GOLDENS]


async def test_every_attack_at_once_changes_no_text_and_leaves_nothing(
    model: Path, survivor: ServerProcess, tmp_path: Path
) -> None:
    """`make chaos` in little. The last of a flag counts, and so the programs of the other servers fit."""
    flags = (*server_flags(tmp_path, 1), *SETTINGS)
    headers, streams = {"Authorization": f"Bearer {REFERENCE_KEY}"}, [ReferenceStream(index) for index in (1, 2, 3)]
    with ServerProcess(model, survivor.cache, flags) as server:
        server.wait_ready()
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as http:
            texts, _ = await undisturbed(http, server.url, streams)
            before = await when_idle(http, server.url, server.pid)
            stage = Stage(server.url, http, streams, texts, 8, Pauses(tmp_path / "none"), most_at_once=1)
            num_streams = (await stage.attacked(CHAOS_S, seed=5)).num_streams
            while stage.ledger.num_attacks <= MIN_ATTACKS and stage.num_rounds < 20:  # on a machine that is very busy
                num_streams += (await stage.attacked(CHAOS_S, seed=5)).num_streams
            after = await when_idle(http, server.url, server.pid, since=before)
    assert stage.ledger.failures == []
    assert after.leaks_since(before) == []
    assert num_streams >= len(streams)
    assert stage.ledger.num_attacks > MIN_ATTACKS


async def test_killed_in_a_compile_and_killed_again_while_it_streams(survivor: ServerProcess) -> None:
    assert await token_ids(survivor) == [golden["output_token_ids"] for golden in GOLDENS]
    assert warnings_in(survivor.log()) == []
    assert list(survivor.cache.glob("compiled/.*")) == list(survivor.cache.glob("compiled/*/.*")) == []
    _, ends = await end_of_streams(survivor, signal.SIGKILL)
    assert [len(end.errors) for end in ends] == [1] * len(ends)
    assert ends[0].num_deltas
    assert survivor.wait() == -signal.SIGKILL


async def test_a_frozen_engine_ends_each_stream_once_and_the_process_with_1(
    model: Path, survivor: ServerProcess
) -> None:
    with ServerProcess(model, survivor.cache, ("--stall-timeout", str(STALL_S))) as server:
        server.wait_ready()
        assert warnings_in(server.log()) == []
        frozen_at, ends = await end_of_streams(server, signal.SIGUSR1)
        for end in ends:
            (error,) = end.errors
            assert "stall_timeout" in error
            assert 0.5 * STALL_S < end.at - frozen_at < STALL_S + PATIENCE_S / 2  # for a busy machine
        assert ends[0].num_deltas
        assert server.wait(PATIENCE_S) == 1
        assert "slow_dispatch" in server.log()  # where the thread stands


async def test_a_torn_folder_of_programs_on_a_full_disk_costs_only_time(model: Path, survivor: ServerProcess) -> None:
    (kept,) = survivor.cache.glob("compiled/*/programs")
    assert kept.stat().st_size > FILE_LIMIT
    torn = kept.read_bytes()[:1000]
    kept.write_bytes(torn)
    with ServerProcess(model, survivor.cache, file_limit=FILE_LIMIT) as server:
        server.wait_ready()
        assert await token_ids(server) == [golden["output_token_ids"] for golden in GOLDENS]
        warnings = warnings_in(server.log())
        assert "are damaged, and are compiled anew" in warnings[0]
        assert all("are not kept in" in warning for warning in warnings[1:])
        assert len(warnings) > 1
        server.send(signal.SIGTERM)
        assert server.wait() == 0
    assert kept.read_bytes() == torn
    assert list(survivor.cache.glob("compiled/.*")) == list(survivor.cache.glob("compiled/*/.*")) == []
