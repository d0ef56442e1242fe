"""The client behind a connection: the peer's address, or the one that a trusted proxy names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from engine.interface.client_address import client_of, parse_address

HERE = "this machine"
_MAX_HOPS = 16
# A node of the Forwarded header (RFC 7239, section 6), or an entry of X-Forwarded-For, perhaps with a port.
_NODE = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+)(?::\d+)?|([0-9A-Fa-f:.]+)")
_FORWARDED_FOR = re.compile(r'\s*for\s*=\s*"?([^";,]*)"?', re.IGNORECASE)


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
        nodes = noted.split(",") if noted else _FORWARDED_FOR.findall(",".join(forwarded))
        for node in reversed(nodes[-_MAX_HOPS:]):
            found = _NODE.fullmatch(node.strip())
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
