"""Bodies that are right for their route but for a few values, names or lengths: every route that takes a body."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from benchmarks.chaos.attacks.route_bodies import ODD_VALUES, ROUTE_BODIES
from benchmarks.chaos.target import Target

_MAX_BYTES = 1 << 20  # of a body
_MOST_PLACES = 20  # of a list; the others are like these

# A model may be unable to do what a route asks, which some APIs say with 501.
_ANSWERS = (200, 400, 401, 403, 404, 405, 409, 413, 422, 429, 501)


async def mutated_bodies(target: Target) -> None:
    """A body of any route with some of its values, names and lengths changed."""
    path, body = draw_body(target.draw)
    attack = "mutated bodies"
    headers = {"Content-Type": "application/json"}
    status, _ = await target.ask(attack, "POST", path, _ANSWERS, data=body, headers=headers)
    if not target.ledger.is_expected(status, _ANSWERS):
        target.ledger.fail(f"{attack}: {path} was sent {body[:1000]!r}")


def draw_body(draw: random.Random) -> tuple[str, bytes]:
    """A path and a body for it; it depends on nothing but the state of `draw`."""
    path, good = draw.choice(ROUTE_BODIES)
    body: Any = _copy(good)
    data = b""
    for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
        body = draw.choice(_MUTATIONS)(draw, body)
        data, before = json.dumps(body).encode(), data
        if len(data) > _MAX_BYTES:
            return path, before
    return path, data


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container within a value, with each of its keys or indices."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        container = left.pop()
        if isinstance(container, dict):
            found += [(container, key) for key in container]
            left += container.values()
        elif isinstance(container, list):
            found += [(container, index) for index in range(min(len(container), _MOST_PLACES))]
            left += container[:_MOST_PLACES]
    return found


def _set(draw: random.Random, body: Any) -> Any:
    places = _places(body)
    if not places or draw.random() < 0.01:
        return _copy(draw.choice(ODD_VALUES))
    container, key = draw.choice(places)
    container[key] = _copy(draw.choice(ODD_VALUES))
    return body


def _drop(draw: random.Random, body: Any) -> Any:
    places = _places(body)
    if places:
        container, key = draw.choice(places)
        del container[key]
    return body


def _move(draw: random.Random, body: Any) -> Any:
    """A value that another place has."""
    places = _places(body)
    if places:
        (container, key), (other, at) = draw.choice(places), draw.choice(places)
        container[key] = _copy(other[at])
    return body


def _borrow(draw: random.Random, body: Any) -> Any:
    """A field that other routes have."""
    _, other = draw.choice(ROUTE_BODIES)
    if isinstance(body, dict) and other:
        name = draw.choice(sorted(other))
        body[name] = _copy(other[name])
    return body


def _repeat(draw: random.Random, body: Any) -> Any:
    lists = [container[key] for container, key in _places(body) if isinstance(container[key], list) and container[key]]
    if lists:
        chosen = draw.choice(lists)
        times = min(draw.choice([2, 50, 300]), _MAX_BYTES // len(json.dumps(chosen)))
        # Copies: where one list stood in many places, to repeat something in it would repeat it in all of them.
        chosen += [each for _ in range(times - 1) for each in _copy(chosen)]
    return body


def _nest(draw: random.Random, body: Any) -> Any:
    places = _places(body)
    if places:
        container, key = draw.choice(places)
        value = container[key]
        for _ in range(draw.choice([1, 20, 200])):
            value = [value] if draw.random() < 0.5 else {"a": value}
        container[key] = value
    return body


_MUTATIONS: tuple[Callable[[random.Random, Any], Any], ...] = (_set, _set, _set, _drop, _move, _borrow, _repeat, _nest)
