"""The routes that machines ask, and the metrics that generations leave."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually


async def read_metrics(server: RunningServer) -> dict[str, float]:
    async with server.http.get(server.url + "/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        text = await response.text()
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_models(server: RunningServer) -> None:
    _, body = await server.get("/v1/models")
    (model,) = body["data"]
    created = model.pop("created")
    assert isinstance(created, int)
    assert body["object"] == "list"
    assert model == {
        "id": "fake",
        "object": "model",
        "owned_by": "eagre",
        "architecture": "fake",
        "num_parameters": 0,
        "max_model_len": 512,
        "dtype": "float32",
        "matmul_backend": "xla",
        "attention_backend": "xla",
    }
    assert (await server.get("/v1/models/fake"))[1] == {**model, "created": created}
    status, body = await server.get("/v1/models/org/other")
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


async def test_the_served_name_is_the_users(start_server: StartServer) -> None:
    server = await start_server(served_model_name="org/mine")
    assert (await server.get("/v1/models/org/mine"))[1]["id"] == "org/mine"
    assert (await server.post("/v1/completions", {"prompt": "a", "model": "org/mine"}))[1]["model"] == "org/mine"
    assert (await server.post("/v1/completions", {"prompt": "a", "model": "fake"}))[0] == 404


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


async def test_metrics_count_what_was_served(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine)
    await server.post("/v1/completions", {"prompt": "abc"})  # 4 tokens with the end of the sequence
    await server.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 3, "n": 2})
    await server.stream_bytes("/v1/completions", {"prompt": "abcdef", "stop": "c"})
    metrics = await read_metrics(server)
    assert metrics["eagre_request_success_total,finish_reason=stop"] == 2
    assert metrics["eagre_request_success_total,finish_reason=length"] == 2
    assert metrics["eagre_request_success_total,finish_reason=abort"] == 0
    assert metrics["eagre_prompt_tokens_total"] == 3 + 6 + 6
    assert metrics["eagre_generation_tokens_total"] == 4 + 2 * 3 + 3
    assert metrics["eagre_time_to_first_token_seconds_count"] == 4
    assert metrics["eagre_e2e_request_latency_seconds_count"] == 3
    # Tokens beyond each choice's first, less those that came together with it.
    assert 0 < metrics["eagre_inter_token_latency_seconds_count"] <= 4 + 2 * 3 + 3 - 4
    assert (
        metrics["eagre_inter_token_latency_seconds_bucket,le=+Inf"]
        == (metrics["eagre_inter_token_latency_seconds_count"])
    )


async def test_what_clients_leave_counts_as_aborted(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "abc", "n": 2}))
    await eventually(lambda: len(engine.running) == 2)
    asking.cancel()
    await server.assert_all_streams_ended()
    metrics = await read_metrics(server)
    assert metrics["eagre_request_success_total,finish_reason=abort"] == 2


async def test_metrics_show_the_engines_figures(server: RunningServer) -> None:
    await server.post("/v1/completions", {"prompt": "abc"})
    metrics = await read_metrics(server)
    assert metrics["eagre_steps_total"] >= 4
    for name in (
        "eagre_num_requests_running",
        "eagre_num_requests_waiting",
        "eagre_kv_cache_usage_perc",
        "eagre_num_preemptions_total",
        "eagre_prefix_cache_queries_total",
        "eagre_prefix_cache_hits_total",
        "eagre_compiles_after_ready_total",
    ):
        assert metrics[name] == 0


async def test_metrics_answer_while_loading(start_server: StartServer) -> None:
    server = await start_server(is_open=False)
    assert (await read_metrics(server))["eagre_steps_total"] == 0
