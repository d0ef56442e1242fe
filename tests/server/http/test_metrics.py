"""The metrics that generations leave."""

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
        sample.name + "".join(f",{key}={value}" for key, value in sample.labels.items() if key != "model"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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


async def test_vllms_dashboard_finds_its_figures(start_server: StartServer) -> None:
    server = await start_server(metrics_names="vllm")
    await server.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 3, "n": 2})
    await server.stream_bytes("/v1/completions", {"prompt": "abc", "stop": "c"})
    found = await read_metrics(server)
    metrics = {name.partition(",model_name=")[0]: value for name, value in found.items()}
    for name in ("prompt_tokens", "generation_tokens", "prefill_time_seconds", "decode_time_seconds",
                 "inference_time_seconds", "params_max_tokens"):  # fmt: skip
        assert metrics[f"vllm:request_{name}_count"] == 3
    assert metrics["vllm:request_prompt_tokens_sum"] == 6 + 6 + 3
    assert metrics["vllm:request_generation_tokens_sum"] == 3 + 3 + 3
    assert (metrics["vllm:request_params_n_sum"], metrics["vllm:request_params_n_count"]) == (2 + 1, 2)
    assert metrics["vllm:request_max_num_generation_tokens_sum"] == 3 + 3
    assert metrics["vllm:num_preemptions_total"] == 0
    assert "vllm:iteration_tokens_total_count" in metrics
    assert metrics["vllm:request_decode_time_seconds_sum"] <= metrics["vllm:request_inference_time_seconds_sum"]


async def test_llama_cpps_figures_stand_beside_the_others(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, metrics_names="llamacpp")
    await server.post("/completion", {"prompt": "abcdef", "n_predict": 3})
    await server.stream_bytes("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
    async with server.http.get(server.url + "/metrics") as response:
        assert int(response.headers["Process-Start-Time-Unix"]) == server.served.started_at
        text = await response.text()
    metrics = await read_metrics(server)
    metrics |= {
        name: float(value)
        for name, value in (line.split() for line in text.splitlines() if line.startswith("llamacpp"))
    }
    assert metrics["llamacpp:tokens_predicted_total"] == metrics["eagre_generation_tokens_total"] > 3
    assert metrics["llamacpp:n_decode_total"] > 3
    assert metrics["llamacpp:requests_processing"] == 0
    assert metrics["llamacpp:n_tokens_max"] >= 6 + 3
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE llamacpp:"))
    assert kinds["llamacpp:n_tokens_max"] == kinds["llamacpp:prompt_tokens_total"] == "counter"
    assert kinds["llamacpp:predicted_tokens_seconds"] == "gauge"
    assert all(f"# HELP {name} " in text for name in kinds)


async def test_llama_cpps_rates_are_those_since_the_last_look(start_server: StartServer) -> None:
    server = await start_server(metrics_names="llamacpp")
    await server.stream_bytes("/v1/completions", {"prompt": "abcdef"})
    assert (await read_metrics(server))["llamacpp:predicted_tokens_seconds"] > 0
    assert (await read_metrics(server))["llamacpp:predicted_tokens_seconds"] == 0
