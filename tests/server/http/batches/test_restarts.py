"""Batches go on after the end of a process, however it came: each line has one answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.http.batches import batch_runner
from server.storage.database import StoreError
from server.storage.record_store import RecordStore
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.http.batches.conftest import client_of, create, ended, line, lines_of, wait_for

NUM_LINES = 44


async def restart(server: RunningServer, start_server: StartServer, store: str, **settings: Any) -> RunningServer:
    await server.runner.cleanup()
    return await start_server(FakeEngineClient(), store=store, **settings)


def content() -> bytes:
    return b"".join(line(f"r{at}") for at in range(NUM_LINES))


async def answer_some(engine: FakeEngineClient) -> None:
    for _ in range(3):
        await eventually(lambda: len(engine.running) == 4)
        engine.step(8)
    await eventually(lambda: len(engine.running) == 4)
    engine.step(2)


async def test_a_batch_goes_on_after_three_restarts(start_server: StartServer, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, store=store, max_batch_requests=4)
    async with client_of(server) as client:
        batch = await create(client, content())
        await eventually(lambda: len(engine.running) == 4)
        engine.step(3)
    for _ in range(3):
        await server.runner.cleanup()
        engine = FakeEngineClient(is_manual=True)
        server = await start_server(engine, store=store, max_batch_requests=4)
        await answer_some(engine)
    server = await restart(server, start_server, store)
    async with client_of(server) as client:
        batch = await ended(client, batch.id)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (NUM_LINES, 0)
        answers = await lines_of(client, batch.output_file_id)
        assert [answer["custom_id"] for answer in answers] == [f"r{at}" for at in range(NUM_LINES)]
        assert all(answer["response"]["body"]["choices"][0]["text"] == f"<{answer['custom_id']}>" for answer in answers)


PROGRAM = """
import asyncio, os, signal, sys
import structlog
structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
from server.storage.batch_table import BatchTable
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import server_starter

record, num_recorded = BatchTable._record, 0

def record_and_die(*arguments, **options):
    global num_recorded
    num_recorded += 1
    recorded = record(*arguments, **options)
    if num_recorded == 8:
        os.kill(os.getpid(), signal.SIGKILL)  # in the middle of a transaction
    return recorded

BatchTable._record = record_and_die

async def run():
    async with server_starter() as start_server:
        await start_server(FakeEngineClient(), store=sys.argv[1], max_batch_requests=3)
        await asyncio.sleep(60)

asyncio.run(run())
"""


async def test_a_batch_goes_on_after_a_kill(start_server: StartServer, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    server = await start_server(FakeEngineClient(is_manual=True), store=store)
    async with client_of(server) as client:
        batch = await create(client, content())
    await server.runner.cleanup()
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PROGRAM, store], env={**os.environ}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    server = await start_server(FakeEngineClient(), store=store)
    async with client_of(server) as client:
        batch = await ended(client, batch.id)
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed) == ("completed", NUM_LINES)
        assert len(server.engine.submitted) == NUM_LINES - 7
        answers = await lines_of(client, batch.output_file_id)
        assert [answer["custom_id"] for answer in answers] == [f"r{at}" for at in range(NUM_LINES)]


async def test_a_drain_ends_requests_of_batches_at_once(start_server: StartServer, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, store=store)
    async with client_of(server) as client:
        batch = await create(client, content())
        await eventually(lambda: len(engine.running) > 0)
        server.served.start_draining()
        assert await server.served.wait_idle(PATIENCE_S)
        await eventually(lambda: not engine.running)
        found = await client.batches.retrieve(batch.id)
        assert found.request_counts is not None
        assert (found.status, found.request_counts.completed) == ("in_progress", 0)

    def attempts(database: sqlite3.Connection) -> int:
        (most,) = database.execute("SELECT max(attempts) FROM lines").fetchone()
        return int(most)

    await server.runner.cleanup()
    database = sqlite3.connect(store)
    assert attempts(database) == 0
    database.close()


async def test_a_request_that_ends_the_process_again_and_again_is_given_up(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "MAX_ATTEMPTS", 0)
    server = await start_server(FakeEngineClient())
    async with client_of(server) as client:
        batch = await ended(client, (await create(client, line("a"))).id)
        (error,) = await lines_of(client, batch.error_file_id)
        assert error["error"]["code"] == "server_error"


async def test_a_store_that_cannot_be_written_loses_no_answer(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "_RETRY_S", 0.01)
    run, num_failures = RecordStore.run, 0

    async def fail_often(store: RecordStore, work: Any) -> Any:
        nonlocal num_failures
        if num_failures % 3 != 2 and server.engine.submitted:
            num_failures += 1
            raise StoreError("the disk is full")
        num_failures += 1
        return await run(store, work)

    async with client_of(server) as client:
        batch = await create(client, b"".join(line(f"r{at}") for at in range(8)))
        monkeypatch.setattr(RecordStore, "run", fail_often)
        batch = await ended(client, batch.id)
        assert [answer["custom_id"] for answer in await lines_of(client, batch.output_file_id)] == [
            f"r{at}" for at in range(8)
        ]


async def test_a_batch_whose_key_is_gone_waits(start_server: StartServer, tmp_path: Path) -> None:
    store, keys = str(tmp_path / "store.db"), ("key-of-ann ann", "key-of-ben ben")
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, store=store, api_keys=keys)
    async with client_of(server, "key-of-ann") as ann:
        batch = await create(ann, line("a"))
        await wait_for(ann, batch.id, lambda found: found.status == "in_progress")
    server = await restart(server, start_server, store, api_keys=keys[1:])
    await asyncio.sleep(0.2)
    assert not server.engine.submitted
    server = await restart(server, start_server, store, api_keys=keys)
    async with client_of(server, "key-of-ann") as ann:
        assert (await ended(ann, batch.id)).status == "completed"


async def test_answers_wait_for_room(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, store_file_bytes=100_000, max_batch_requests=1)
    async with client_of(server) as client:
        filler = await client.files.create(file=("a", bytes(80_000)), purpose="batch")
        body = {"model": "fake", "prompt": "x" * 400, "max_tokens": 50}
        batch = await create(client, b"".join(line(f"r{at}", body) for at in range(16)))
        async with asyncio.timeout(PATIENCE_S):
            while server.served.store.has_room_for_files("", is_shared=False):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await client.files.delete(filler.id)
        assert (await ended(client, batch.id)).status == "completed"


async def test_a_key_may_not_fill_the_store_with_lines_and_answers(start_server: StartServer) -> None:
    keys = ("key-of-ann ann", "key-of-ben ben")
    server = await start_server(FakeEngineClient(), store_file_bytes=100_000, max_batch_requests=1, api_keys=keys)
    async with client_of(server, "key-of-ann") as ann, client_of(server, "key-of-ben") as ben:
        content = b"".join(line(f"{at:0500}", {"model": "fake", "prompt": "x", "max_tokens": 1}) for at in range(40))
        full = await ended(ann, (await create(ann, content)).id)
        assert full.errors is not None
        assert full.errors.data is not None
        assert (full.status, [error.code for error in full.errors.data]) == ("failed", ["files_full"])
        await ann.files.delete(full.input_file_id)
        await ann.files.create(file=("a", bytes(36_000)), purpose="batch")
        body = {"model": "fake", "prompt": "x" * 400, "max_tokens": 50}
        waits = await create(ann, b"".join(line(f"r{at}", body) for at in range(6)))
        await wait_for(ann, waits.id, lambda batch: bool(batch.request_counts and batch.request_counts.completed))
        assert (await ended(ben, (await create(ben, line("ben"))).id)).status == "completed"
        stays = await ann.batches.retrieve(waits.id)
        assert stays.request_counts is not None
        assert (stays.status, stays.request_counts.completed) == ("in_progress", 1)
