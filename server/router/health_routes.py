"""Handlers of liveness, readiness, health and metrics: the router's own, and those of all replicas together."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from server.http.entry.guard import may_see_figures
from server.http.transport.json_body import json_response
from server.router.replica import HEALTH_S, Replica, ReplicaLost, read_whole
from server.router.router import ROUTER, Router
from server.serving.served_models import Phase
from server.startup.logs import log


async def liveness(_request: web.Request) -> web.Response:
    """200: the router's event loop runs. A replica that fails is no reason to restart all of them."""
    return json_response({"status": "alive"})


async def readiness(request: web.Request) -> web.Response:
    """200 while requests are accepted; else 503 with the reason."""
    body = _readiness(request.app[ROUTER])
    return json_response(body, status=_status(body))


async def health(request: web.Request) -> web.Response:
    """Readiness; for clients with a key the number of open requests and the health of each replica too."""
    router = request.app[ROUTER]
    if not may_see_figures(request):
        return await readiness(request)
    replicas = tuple(router.replicas)
    answers = await asyncio.gather(*(_get(router, replica, "/health") for replica in replicas))
    body = _readiness(router)
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
        for replica, answer in zip(replicas, answers, strict=True)
    }
    return json_response(body, status=_status(body))


async def metrics(request: web.Request) -> web.Response:
    """The metrics of all replicas, each with the label `replica`, and the router's own."""
    router = request.app[ROUTER]
    replicas = tuple(router.replicas)
    answers = await asyncio.gather(*(_get(router, replica, "/metrics") for replica in replicas))
    pages = {
        replica.name: page.decode(errors="replace")
        for replica, page in zip(replicas, answers, strict=True)
        if page is not None
    }
    own = [*_own_metrics(router)]
    body = await router.workers.run(lambda: join_metrics(pages, own))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def join_metrics(pages: dict[str, str], others: Sequence[Metric] = ()) -> bytes:
    """One page of metrics from the pages of several replicas, by their names, which become the label `replica`. A page
    that cannot be read is left out.
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
    return generate_latest(_Families(families.values()))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _own_metrics(router: Router) -> Iterator[Metric]:
    is_up = GaugeMetricFamily("eagre_front_replica_ready", "Whether the replica gets requests", labels=["replica"])
    num_open = GaugeMetricFamily("eagre_front_open_requests", "Requests that are open on it", labels=["replica"])
    for replica in router.replicas:
        is_up.add_metric([replica.name], float(replica.is_usable))
        num_open.add_metric([replica.name], replica.num_open)
    yield is_up
    yield num_open
    yield CounterMetricFamily(
        "eagre_front_moved_streams", "Streams that went on at another replica", value=router.num_moved
    )


def _readiness(router: Router) -> dict[str, Any]:
    replicas = router.replicas
    if router.is_draining:
        return {"status": Phase.DRAINING, "detail": "the server is shutting down"}
    if replicas.is_ready:
        return {"status": Phase.READY, "detail": f"{len(replicas.usable)} of {len(replicas)} replicas accept requests"}
    reasons = "; ".join(f"{replica.name}: {replica.detail}" for replica in replicas if not replica.is_usable)
    return {"status": Phase.LOADING, "detail": reasons or "there is no replica yet"}


def _status(body: dict[str, Any]) -> int:
    return 200 if body["status"] is Phase.READY else 503


async def _get(router: Router, replica: Replica, path: str) -> bytes | None:
    """The body of a replica's answer; None where none with status 200 or 503 comes in time."""
    try:
        async with asyncio.timeout(HEALTH_S), replica.request("GET", path, headers=router.own_headers()) as answer:
            body = await read_whole(answer, replica.name)
            return body if answer.status in (200, 503) else None
    except (ReplicaLost, TimeoutError):
        return None


def _parse(body: bytes | None) -> Any:
    try:
        return None if body is None else orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
