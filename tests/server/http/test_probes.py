"""What the server says of its own health."""

from __future__ import annotations

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
