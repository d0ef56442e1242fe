"""What a server under attack has left behind is reported."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from benchmarks.chaos.leaks import MAX_MEMORY_GROWTH, ServerState

STATS = {
    "num_running": 0, "num_waiting": 0, "num_active_pages": 0, "num_cached_pages": 3, "num_free_pages": 7,
    "num_pages": 10, "compiles_after_ready": 0,
}  # fmt: skip
GOOD = ServerState(stats=STATS, num_streams=0, num_descriptors=20, num_tasks=9, resident_bytes=500 << 20)


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({}, None),
        ({"stats": STATS | {"num_active_pages": 2, "num_free_pages": 5}}, "2 pages leaked"),
        ({"stats": STATS | {"num_free_pages": 6}}, "the pool has 9 of its 10 pages"),
        ({"stats": STATS | {"num_waiting": 1}}, "requests are left"),
        ({"num_streams": 1}, "requests are left"),
        ({"stats": STATS | {"compiles_after_ready": 1}}, "1 compiles after readiness"),
        ({"num_descriptors": 40}, "40 descriptors are open; before there were 20"),
        ({"num_tasks": 30}, "30 tasks run; before there were 9"),
        ({"resident_bytes": (501 << 20) + MAX_MEMORY_GROWTH}, "memory grew by"),
        ({"resident_bytes": (501 << 20) + MAX_MEMORY_GROWTH, "num_processes": 2}, None),
    ],
)
def test_what_is_left_is_reported(change: dict[str, Any], failure: str | None) -> None:
    failures = dataclasses.replace(GOOD, **change).leaks_since(GOOD)
    if failure is None:
        assert failures == []
    else:
        assert len(failures) == 1
        assert failure in failures[0]


async def test_a_router_has_what_it_and_its_replicas_have(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {**STATS, "num_active_pages": 1, "device": "cpu"}

    async def health(_request: web.Request) -> web.Response:
        replicas = {"0": {"health": {"stats": stats}}, "1": {"health": {"stats": stats}}, "2": {"health": None}}
        return web.json_response({"num_streams": 3, "replicas": replicas})

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text='eagre_asyncio_tasks{replica="0"} 4.0\neagre_asyncio_tasks{replica="1"} 5.0\n')

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    replica, lost = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", "input()", stdin=subprocess.PIPE, start_new_session=True
        )
        for _ in range(2)
    ]
    session_of = os.getsid

    def session_of_those_left(pid: int) -> int:
        if pid == lost.pid:
            raise ProcessLookupError(f"process {pid} has ended since it was found")
        return session_of(pid)

    monkeypatch.setattr(os, "getsid", session_of_those_left)
    try:
        async with TestServer(app) as server, ClientSession() as session:
            state = await ServerState.of(session, str(server.make_url("/")).rstrip("/"), os.getpid())
    finally:
        await asyncio.gather(replica.communicate(b"\n"), lost.communicate(b"\n"))
    assert state.num_streams == 3
    assert state.stats == {name: 2 * value for name, value in stats.items() if isinstance(value, int)}
    assert state.num_tasks == 9
    if sys.platform == "linux":
        assert state.num_processes >= 2  # this one and the one that leads a session
