"""What the server says of its own health."""

from __future__ import annotations

import asyncio

import pytest

from server.cli.listeners import start_sites
from server.http.app import build_metrics_app, make_runner
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer


async def test_health_tells_the_engines_figures(server: RunningServer) -> None:
    status, body = await server.get("/health")
    assert (status, body["status"], body["num_streams"]) == (200, "ready", 0)
    assert body["stats"]["num_running"] == 0
    assert body["stats"]["kv_cache_usage"] == 0.0
    assert (await server.get("/version"))[1]["name"] == "eagre"


async def test_an_engine_that_does_not_turn_flips_liveness_and_readiness(server: RunningServer) -> None:
    assert await server.get("/liveness") == (200, {"status": "alive"})
    server.engine.is_alive = False
    assert await server.get("/liveness") == (503, {"status": "dead"})
    status, body = await server.get("/readiness")
    assert (status, body["detail"]) == (503, "the engine does not turn")


@pytest.mark.parametrize("path", ["/liveness", "/readiness"])
async def test_probes_do_not_wait_behind_clients(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(server.served.turns, "next", asyncio.Event().wait)  # no client's turn ever comes
    async with asyncio.timeout(PATIENCE_S):
        assert (await server.get(path))[0] == 200


@pytest.mark.parametrize("path", ["/liveness", "/metrics"])
async def test_what_machines_ask_at_the_port_of_metrics_does_not_wait_behind_clients(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(server.served.turns, "next", asyncio.Event().wait)  # no client's turn ever comes
    runner = make_runner(build_metrics_app(server.served))
    try:
        await runner.setup()
        await start_sites(runner, ["127.0.0.1"], 0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        async with asyncio.timeout(PATIENCE_S), server.http.get(url) as response:
            assert response.status == 200
    finally:
        await runner.cleanup()
