"""The loads under which servers are compared, and the figures that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from server.cli.bench.load.report import Report
from server.cli.bench.load.workload import Workload

NUM_WARM_UP_REQUESTS = 16  # at most
NUM_WARM_UP_TOKENS = 8  # of each output

# Other servers may not keep connections alive and do not know return_token_ids, so neither is used.
COMMON = Workload(url="", model="", keep_alive=False, return_token_ids=False)


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """A load, and the figures in its table."""

    name: str
    figures: tuple[str, ...]
    workload: Workload  # without the server and the seed

    def of(self, url: str, model: str, seed: int) -> Workload:
        """The workload for one server; each seed gives other prompts."""
        return replace(self.workload, url=url, model=model, seed=seed)

    def of_size(self, num_requests: int) -> PeerLoad:
        return replace(self, workload=replace(self.workload, num_requests=num_requests))


def decode(concurrency: int) -> PeerLoad:
    num_requests = max(2 * concurrency, min(6 * concurrency, 48))
    return PeerLoad(
        f"c{concurrency}",
        ("tok/s", "TTFT p50", "TTFT p99", "gap p50", "gap p99", "gap max", "tok/chunk"),
        replace(COMMON, concurrency=concurrency, num_requests=num_requests),
    )


def prefix() -> PeerLoad:
    return PeerLoad(
        "prefix",
        ("requests/s", "TTFT p50", "TTFT p99", "cached tok"),
        replace(
            COMMON,
            concurrency=8,
            num_requests=32,
            num_prompt_tokens=1024,
            num_shared_tokens=960,
            num_output_tokens=32,
        ),
    )


def prefill(num_prompt_tokens: int = 1024) -> PeerLoad:
    workload = replace(COMMON, num_requests=8, num_prompt_tokens=num_prompt_tokens, num_output_tokens=1)
    return PeerLoad("prefill", ("TTFT p50", "TTFT p99"), workload)


def warm_up(workload: Workload, seed: int) -> Workload:
    """Short requests that wake threads and touch memory before the clock starts, at the concurrency of the load."""
    return replace(
        workload,
        seed=seed,
        num_requests=min(workload.concurrency, NUM_WARM_UP_REQUESTS),
        num_prompt_tokens=COMMON.num_prompt_tokens,
        num_shared_tokens=0,
        num_output_tokens=NUM_WARM_UP_TOKENS,
    )


def figures_of(report: Report) -> dict[str, float]:
    """All figures of a report, by the names that loads use; times are in milliseconds."""
    num_good = report.num_requests - report.num_failed
    if not num_good:
        return {}
    figures = {
        "tok/s": report.tokens_per_s,
        "requests/s": num_good / report.seconds,
        "cached tok": report.num_cached_tokens / num_good,
    }
    if report.tokens_per_chunk is not None:
        figures["tok/chunk"] = report.tokens_per_chunk
    if report.ttft is not None:
        figures |= {"TTFT p50": report.ttft.p50, "TTFT p99": report.ttft.p99}
    if report.itl is not None:
        figures |= {"gap p50": report.itl.p50, "gap p99": report.itl.p99, "gap max": report.itl.max}
    return figures
