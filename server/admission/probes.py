"""Liveness and readiness probes: their paths, and the client that a probe comes from."""

from __future__ import annotations

import asyncio

from server.admission.trusted_proxies import HERE, owner_of

LIVENESS, READINESS = "/liveness", "/readiness"
PROBES = frozenset({LIVENESS, READINESS})


def prober(transport: asyncio.BaseTransport | None) -> str:
    """The client that a probe on this connection comes from, by its address, because probes have no key."""
    return HERE if transport is None else owner_of(transport.get_extra_info("peername"))
