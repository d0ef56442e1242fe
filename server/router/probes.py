"""How the front and its replicas are: liveness, readiness, health and metrics of all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from server.http.transport.json_body import json_response
from server.router.front import FRONT, Front
from server.router.proxy_response import read_whole
from server.router.replica import HEALTH_S, Replica, ReplicaLost
from server.serving.served_models import Phase
from server.startup.logs import log


async def liveness(_request: web.Request) -> web.Response:
    """200: the front turns. What is wrong with a replica is no reason to restart all of them."""
    return json_response({"status": "alive"})


async def readiness(request: web.Request) -> web.Response:
    """200 while requests are accepted; else 503 with the reason."""
    body = _readiness(request.app[FRONT])
    return json_response(body, status=_status(body))


async def health(request: web.Request) -> web.Response:
    """Readiness, what is open, and what each replica says of itself."""
    front = request.app[FRONT]
    replicas = tuple(front.replicas)
    told = await asyncio.gather(*(_ask(front, replica, "/health") for replica in replicas))
    body = _readiness(front)
    body["num_streams"] = sum(replica.num_open for replica in replicas)
    body["replicas"] = {
        replica.name: {
            "address": replica.address,
            "state": replica.state,
            "detail": replica.detail,
            "num_open": replica.num_open,
            "is_leaving": replica.is_leaving,
            "health": _parse(answer),
        }
        for replica, answer in zip(replicas, told, strict=True)
    }
    return json_response(body, status=_status(body))


async def metrics(request: web.Request) -> web.Response:
    """The figures of all replicas, each with the label `replica`, and the front's own."""
    front = request.app[FRONT]
    replicas = tuple(front.replicas)
    pages = await asyncio.gather(*(_ask(front, replica, "/metrics") for replica in replicas))
    told = {replica.name: page for replica, page in zip(replicas, pages, strict=True) if page is not None}
    texts = {name: page.decode(errors="replace") for name, page in told.items()}
    families = [*_own_figures(front)]
    body = await front.workers.run(lambda: join_metrics(texts, families))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def join_metrics(pages: dict[str, str], others: Sequence[Metric] = ()) -> bytes:
    """One page of the metrics of several servers.

    Args:
        pages: by the name of the replica, which becomes the value of the label `replica`; in Prometheus's text format.
            One that cannot be read is left out.
        others: what is not of a replica.
    """
    families: dict[str, Metric] = {family.name: family for family in others}
    for replica, page in pages.items():
        try:
            found = list(text_string_to_metric_families(page))
        except (ValueError, LookupError) as error:
            log.warning("unreadable_metrics", replica=replica, reason=str(error))
            continue
        for family in found:
            joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            joined.samples += [
                sample._replace(labels={"replica": replica, **sample.labels}) for sample in family.samples
            ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(tuple(families.values())))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _own_figures(front: Front) -> Iterator[Metric]:
    is_up = GaugeMetricFamily("eagre_front_replica_ready", "Whether the replica gets requests", labels=["replica"])
    num_open = GaugeMetricFamily("eagre_front_open_requests", "Requests that are open on it", labels=["replica"])
    for replica in front.replicas:
        is_up.add_metric([replica.name], float(replica.is_usable))
        num_open.add_metric([replica.name], replica.num_open)
    yield is_up
    yield num_open
    yield CounterMetricFamily(
        "eagre_front_moved_streams", "Streams that went on at another replica", value=front.num_moved
    )


def _readiness(front: Front) -> dict[str, Any]:
    usable, num_replicas = len(front.replicas.usable), len(front.replicas)
    if front.is_draining:
        return {"status": Phase.DRAINING, "detail": "the server is shutting down"}
    if front.replicas.is_ready:
        return {"status": Phase.READY, "detail": f"{usable} of {num_replicas} replicas accept requests"}
    told = "; ".join(f"{replica.name}: {replica.detail}" for replica in front.replicas if not replica.is_usable)
    return {"status": Phase.LOADING, "detail": told or "there is no replica yet"}


def _status(body: dict[str, Any]) -> int:
    return 200 if body["status"] is Phase.READY else 503


async def _ask(front: Front, replica: Replica, path: str) -> bytes | None:
    """The body of an answer, whatever its status; None where there is none in time."""
    try:
        async with asyncio.timeout(HEALTH_S), replica.ask("GET", path, headers=front.own_headers()) as answer:
            body = await read_whole(answer, replica.name)
            return body if answer.status in (200, 503) else None
    except (ReplicaLost, TimeoutError):
        return None


def _parse(body: bytes | None) -> Any:
    try:
        return None if body is None else orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
