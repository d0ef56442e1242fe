from __future__ import annotations

import pytest

from server.cli.bench.load.report import Report, Spread, full_rate
from server.cli.bench.load.trace import Arrival, Trace


def trace(sent: float, *arrivals: tuple[float, int], **rest: object) -> Trace:
    made = Trace(sent=sent, arrivals=[Arrival(*arrival) for arrival in arrivals])
    made.ended = made.arrivals[-1].time if made.arrivals else sent
    for name, value in rest.items():
        setattr(made, name, value)
    return made


def test_times_of_one_request() -> None:
    seen = trace(10.0, (10.5, 1), (10.75, 2), (11.5, 2))
    assert seen.ttft == 0.5
    assert seen.gaps == [0.25, 0.75]
    assert seen.tpot == 0.25  # one second for the four tokens after the first chunk
    assert seen.num_tokens == 5


def test_the_token_count_of_the_server_has_precedence() -> None:
    assert trace(0.0, (1.0, 1), (2.0, 1), num_output_tokens=4).num_tokens == 4


def test_a_request_without_tokens_has_no_times() -> None:
    seen = trace(10.0)
    assert (seen.ttft, seen.gaps, seen.tpot, seen.num_tokens) == (None, [], None, 0)
    assert trace(10.0, (11.0, 8)).tpot is None


def test_spread_is_in_milliseconds_and_linear_between_ranks() -> None:
    spread = Spread.of([0.004, 0.001, 0.003, 0.002])
    assert spread is not None
    assert (spread.mean, spread.p50, spread.max) == pytest.approx((2.5, 2.5, 4.0))
    assert spread.p99 == pytest.approx(3.97)
    assert Spread.of([]) is None


def test_full_rate_counts_only_while_all_streams_flow() -> None:
    traces = [
        trace(0.0, (1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)),
        trace(0.0, (2.0, 1), (3.5, 2), (5.0, 1)),
    ]
    # Both streams run from 2 to 4; the tokens at 3, 3.5 and 4 arrive in that time.
    assert full_rate(traces, 2) == pytest.approx(4 / 2)
    # One stream alone runs from 1 to 2 (a token at 2) and from 4 to 5 (a token at 5).
    assert full_rate(traces[:1], 1) == pytest.approx(3 / 3)
    assert full_rate(traces, 3) is None


def test_full_rate_over_several_waves() -> None:
    traces = [trace(0.0, (1.0, 1), (2.0, 5)), trace(2.0, (4.0, 1), (6.0, 7))]
    assert full_rate(traces, 1) == pytest.approx((5 + 7) / (1 + 2))


def test_report() -> None:
    traces = [
        trace(0.0, (1.0, 1), (2.0, 1)),
        trace(1.0, (3.0, 1), (4.0, 3)),
        trace(0.5, (9.0, 50), error="HTTP 429"),
        trace(0.5, error="HTTP 429"),
    ]
    report = Report.of(traces, concurrency=1, num_output_tokens=2)
    assert (report.num_requests, report.num_failed, report.errors) == (4, 2, {"HTTP 429": 2})
    assert report.num_off_length == 1
    assert report.num_output_tokens == 6
    assert report.seconds == 9.0
    assert report.tokens_per_s == pytest.approx(6 / 9)
    assert report.tokens_per_chunk == pytest.approx(6 / 4)
    assert report.ttft == Spread(mean=1500.0, p50=1500.0, p90=1900.0, p99=1990.0, max=2000.0)


def test_chunks_of_several_tokens_that_only_the_server_counts() -> None:
    seen = trace(0.0, (1.0, 1), (2.0, 1), num_output_tokens=5, num_cached_tokens=3)
    report = Report.of([seen, seen], concurrency=1, num_output_tokens=5)
    assert report.tokens_per_chunk == 2.5
    assert report.num_cached_tokens == 6


def test_report_of_nothing() -> None:
    report = Report.of([], concurrency=1, num_output_tokens=2)
    assert (report.tokens_per_s, report.ttft, report.itl, report.full_tokens_per_s) == (0.0, None, None, None)
