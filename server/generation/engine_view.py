"""A snapshot of an engine as one reader may see it: every count, but the ids of the reader's own requests alone."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from engine.interface.snapshot import EngineSnapshot, RequestView, StepView

NameOf = Callable[[str], str | None]  # the id that clients know a request by; None: the reader may not know it

PAGE_LETTERS = "fcas"  # free, cached, active, shared: by the bytes of the snapshot


def show(snapshot: EngineSnapshot, name_of: NameOf, *, after_step: int) -> dict[str, Any]:
    """What one event of the stream holds, behind `after_step`; milliseconds of steps are on the clock of `now_ms`."""
    stats, now = snapshot.stats, snapshot.now
    return {
        "now_ms": _ms(now),
        "num_slots": snapshot.num_slots,
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "num_steps": stats.num_steps,
        "num_prompt_tokens": stats.num_prompt_tokens,
        "num_generation_tokens": stats.num_generation_tokens,
        "num_preemptions": stats.num_preemptions,
        "prefix_cache_queries": stats.prefix_cache_queries,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "device_idle_fraction": round(stats.device_idle_fraction, 4),
        "slots": [_request(request, name_of, now) for request in snapshot.running],
        "queue": [_request(request, name_of, now) for request in snapshot.waiting],
        "pages": {
            "page_size": stats.page_size,
            "total": stats.num_pages,
            "free": stats.num_free_pages,
            "cached": stats.num_cached_pages,
            "active": stats.num_active_pages,
            "shared": snapshot.num_shared_pages,
            "pages_per_cell": snapshot.pages_per_state,
            "map": run_lengths(snapshot.page_states),
        },
        "steps": [_step(step) for step in snapshot.steps if step.step > after_step],
    }


def run_lengths(states: bytes) -> str:
    """The states as counts and letters, such as "12a3s100f"; a count of 1 is left out."""
    runs = ((PAGE_LETTERS[state], sum(1 for _ in run)) for state, run in groupby(states))
    return "".join(letter if count == 1 else f"{count}{letter}" for letter, count in runs)


def _request(request: RequestView, name_of: NameOf, now: float) -> dict[str, Any]:
    admitted_at = request.admitted_at
    return {
        "id": name_of(request.request_id),
        "key": request.request_id,  # tells requests apart, also those whose id the reader may not know
        "slot": request.slot,
        "state": _state(request),
        "prompt": request.num_prompt_tokens,
        "computed": request.num_computed_tokens,
        "cached": request.num_cached_tokens,
        "output": request.num_output_tokens,
        "pages": request.num_pages,
        "preemptions": request.num_preemptions,
        "age_ms": _ms(now - request.submitted_at),
        "queue_ms": None if admitted_at is None else _ms(admitted_at - request.submitted_at),
    }


def _state(request: RequestView) -> str:
    if request.is_finished:
        return "ending"
    if request.slot < 0:
        return "waiting"
    return "answer" if request.num_computed_tokens >= request.num_prompt_tokens else "prompt"


def _step(step: StepView) -> list[float]:
    return [step.step, step.num_rows, step.num_tokens, *(_ms(moment) for moment in step[3:])]


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
