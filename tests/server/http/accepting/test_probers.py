"""Whom a probe comes from."""

from __future__ import annotations

import asyncio

import pytest

from server.http.accepting.trusted_proxies import prober


class Connected(asyncio.BaseTransport):
    """A connection of a client at an address."""

    def __init__(self, peer: object) -> None:
        super().__init__({"peername": peer})


HERE = (
    ("127.0.0.1", 5000),
    ("127.8.8.8", 5001),
    ("::1", 5000, 0, 0),
    ("::ffff:127.0.0.1", 5000, 0, 0),
    "",  # a Unix socket
    None,
)


@pytest.mark.parametrize("peer", HERE)
def test_all_on_the_servers_machine_are_one(peer: object) -> None:
    assert prober(Connected(peer)) == prober(None)


def test_an_address_is_told_from_others_whatever_its_port_and_form() -> None:
    peers = [("10.0.0.1", 5000), ("10.0.0.1", 5001), ("::ffff:10.0.0.1", 5000, 0, 0), ("10.0.0.2", 5000)]
    first, again, mapped, other = (prober(Connected(peer)) for peer in peers)
    assert first == again == mapped
    assert len({first, other, prober(None)}) == 3


def test_an_ipv6_network_is_one_client() -> None:
    peers = [("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:2", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0)]
    first, neighbour, other = (prober(Connected(peer)) for peer in peers)
    assert first == neighbour
    assert len({first, other, prober(Connected(("fe80::1%eth0", 1, 0, 2)))}) == 3
