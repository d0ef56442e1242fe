"""Clients by their addresses: which connections are of one client, and which of them makes room for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_PREFIX_BITS = 64  # of an IPv6 address, whose other half a client chooses as it likes


def parse_address(text: str) -> IPv4Address | IPv6Address:
    """The address in a socket's name, an IPv4 one where it is mapped into IPv6; raises ValueError."""
    address = ip_address(text.partition("%")[0])
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def client_of(address: IPv4Address | IPv6Address) -> str:
    """The client at an address: an IPv4 address, or an IPv6 network of 64 bits, all of which one host may have."""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(ip_network((address, _PREFIX_BITS), strict=False))


def makes_room(clients: Sequence[str], newcomer: str, *, most: int, most_of_each: int) -> int | None:
    """The index of the connection that ends for a new one; None where there is room.

    Where the newcomer has `most_of_each` it is its own oldest one, and where there are `most` the oldest one of the
    client that has the most. So the silent connections of one client end each other.

    Args:
        clients: of the connections, the oldest first.
    """
    counts = Counter(clients)
    if counts[newcomer] >= most_of_each:
        return clients.index(newcomer)
    return clients.index(counts.most_common(1)[0][0]) if len(clients) >= most else None
