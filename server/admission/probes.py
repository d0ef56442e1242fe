"""Liveness and readiness probes: their paths, and the client that a probe comes from."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address

LIVENESS, READINESS = "/liveness", "/readiness"
PROBES = frozenset({LIVENESS, READINESS})

_HERE = "this machine"
_PREFIX_BITS = 64  # of an IPv6 address, whose other half a client chooses as it likes


def prober(transport: asyncio.BaseTransport | None) -> str:
    """The client that a probe on this connection comes from, by its address, because probes have no key.

    All clients on the server's own machine count as one, and so do those of one IPv6 network.
    """
    peer = None if transport is None else transport.get_extra_info("peername")
    if not isinstance(peer, tuple):  # a Unix socket, or a client that has left
        return _HERE
    address: IPv4Address | IPv6Address = ip_address(peer[0].partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return _HERE
    if isinstance(address, IPv4Address):
        return str(address)
    return f"network {int(address) >> _PREFIX_BITS:x}"
