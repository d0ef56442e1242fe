"""The client behind a connection: the peer's address, or the one that a trusted proxy names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from engine.interface.client_address import client_of, parse_address

HERE = "this machine"
_MAX_HOPS = 16
# A node of the Forwarded header (RFC 7239, section 6), or an entry of X-Forwarded-For, perhaps with a port.
_NODE = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+)(?::\d+)?|([0-9A-Fa-f:.]+)")


class TrustedProxies:
    """The networks of proxies that tell the truth about their clients.

    Raises:
        ValueError: one is no network.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks: tuple[IPv4Network | IPv6Network, ...] = tuple(
            ip_network(each, strict=False) for each in networks
        )

    def trusts(self, peer: object) -> bool:
        """Whether a connection's peer, as `get_extra_info("peername")` has it, is such a proxy."""
        address = _address_of(peer)
        return address is not None and self._has(address)

    def client_of(self, forwarded_for: Sequence[str], forwarded: Sequence[str]) -> str | None:
        """The client that a trusted proxy names, as `owner_of` would; None if it names none. That is the last address
        that is no trusted proxy: what comes before it may be the client's invention.

        Args:
            forwarded_for: the values of the header X-Forwarded-For.
            forwarded: those of Forwarded, which counts where the other is missing.
        """
        noted = ",".join(forwarded_for)
        hops = (noted or ",".join(forwarded)).rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]
        for hop in reversed(hops):
            found = _NODE.fullmatch(hop.strip() if noted else _forwarded_node(hop))
            try:
                address = parse_address(found[1] or found[2] or found[3]) if found is not None else None
            except ValueError:
                address = None
            if address is None:
                return None
            if not self._has(address):
                return _name(address)
        return None

    def _has(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks if network.version == address.version)


def _forwarded_node(element: str) -> str:
    """The value of `for` in an element of the Forwarded header; empty where there is none."""
    for pair in element.split(";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            return value.strip().strip('"')
    return ""


def prober(transport: asyncio.BaseTransport | None) -> str:
    """The client that a probe on this connection comes from, by its address, because probes have no key."""
    return HERE if transport is None else owner_of(transport.get_extra_info("peername"))


def owner_of(peer: object) -> str:
    """The client at an address, as `get_extra_info("peername")` has it. All clients on the server's own machine count
    as one, and so do those of one IPv6 network.
    """
    address = _address_of(peer)
    return HERE if address is None else _name(address)


def _address_of(peer: object) -> IPv4Address | IPv6Address | None:
    if not isinstance(peer, tuple):  # a Unix socket, or a client that has left
        return None
    return parse_address(str(peer[0]))


def _name(address: IPv4Address | IPv6Address) -> str:
    return HERE if address.is_loopback else client_of(address)
