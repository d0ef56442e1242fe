"""The figures as JSON, with the field names of `vllm bench serve`."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from server.cli.bench.comparison import Ratio, Turn
from server.cli.bench.load.report import Report
from server.cli.bench.load.workload import Workload
from server.cli.bench.plan import Plan, Server


def results_of(
    plan: Plan, servers: Sequence[Server], turns: Sequence[Turn], ratios: Sequence[Ratio], *, is_complete: bool
) -> dict[str, Any]:
    """The content of the `--json` file, which has no API key."""
    workloads = {load.name: load.workload for load in plan.loads}
    return {
        "date": datetime.now(UTC),
        "machine": {"python": platform.python_version(), "machine": platform.machine(), "num_cores": os.cpu_count()},
        "servers": [{"name": server.name, "base_url": server.address, "model_id": server.model} for server in servers],
        "seed": plan.seed,
        "is_complete": is_complete,
        "results": [
            {
                "load": turn.load, "server": turn.server, "round": turn.round,
                **_workload(workloads[turn.load]), **_figures(turn.report),
            }
            for turn in turns
        ],
        "ratios": [
            {
                "load": ratio.load, "figure": ratio.figure, "first": ratio.first, "second": ratio.second,
                "ratio_of_medians": ratio.of_medians, "spread": ratio.spread,
            }
            for ratio in ratios
        ],
    }  # fmt: skip


def _workload(workload: Workload) -> dict[str, Any]:
    return {
        "endpoint": workload.route,
        "max_concurrency": workload.concurrency or None,
        "request_rate": workload.rate,
        "num_prompts": workload.num_requests or None,
        "duration_limit": workload.duration,
        "input_tokens": None if workload.dataset else workload.num_prompt_tokens,
        "output_tokens": workload.num_output_tokens,
        "shared_prefix": workload.num_shared_tokens,
        "ignore_eos": workload.ignore_eos,
        "parameters": workload.parameters,
    }


def _figures(report: Report) -> dict[str, Any]:
    figures = {
        "duration": report.seconds,
        "completed": report.num_requests - report.num_failed - report.num_cut,
        "failed": report.num_failed,
        "cut": report.num_cut,
        "off_length": report.num_off_length,
        "errors": report.errors,
        "total_input_tokens": report.num_prompt_tokens,
        "total_cached_tokens": report.num_cached_tokens,
        "total_output_tokens": report.num_output_tokens,
        "request_throughput": report.requests_per_s,
        "output_throughput": report.tokens_per_s,
        "full_output_throughput": report.full_tokens_per_s,
        "tokens_per_chunk": report.tokens_per_chunk,
    }
    times = {
        "ttft": report.ttft, "tpot": report.tpot, "itl": report.itl, "e2el": report.e2el, "send_delay": report.delay,
    }  # fmt: skip
    for name, spread in times.items():
        for figure, field in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"), ("max", "max")):
            figures[f"{figure}_{name}_ms"] = None if spread is None else getattr(spread, field)
    return figures
