"""Mutated bodies reach every route that takes a body, and a seed draws the same ones."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from aiohttp import hdrs

from benchmarks.chaos.attacks.mutated_bodies import draw_body
from benchmarks.chaos.attacks.route_bodies import ROUTE_BODIES
from server.http.app import build_app, read_keys
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings

# It takes a form and no JSON; the attack `batch files` has it.
LEFT_OUT = {"/v1/files"}


async def test_every_route_that_takes_a_body_has_one() -> None:
    app = build_app(ServedModels(ServerSettings()), read_keys(ServerSettings()))
    routes = [
        route.resource
        for route in app.router.routes()
        if route.method == hdrs.METH_POST and route.resource is not None and "/admin/" not in route.resource.canonical
    ]
    paths = {path for path, _ in ROUTE_BODIES}
    without = {
        resource.canonical for resource in routes if not any(resource._match(path) is not None for path in paths)
    }
    assert without == LEFT_OUT


def test_a_seed_draws_the_same_bodies() -> None:
    drawn = [draw_body(random.Random(seed)) for seed in range(60)]
    assert drawn == [draw_body(random.Random(seed)) for seed in range(60)]
    assert len(set(drawn)) > 45


@pytest.mark.parametrize("seed", [9721, 11492])
def test_what_is_repeated_within_what_is_repeated_stays_small(seed: int) -> None:
    tracemalloc.start()
    try:
        _, body = draw_body(random.Random(seed))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) <= 1 << 20
    assert peak < 64 << 20
