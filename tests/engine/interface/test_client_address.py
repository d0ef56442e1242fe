"""Which connections are of one client, and which of them makes room."""

from __future__ import annotations

from engine.interface.client_address import client_of, makes_room, parse_address


def client(text: str) -> str:
    return client_of(parse_address(text))


def test_a_network_of_ipv6_is_one_client() -> None:
    assert client("2001:db8::1") == client("2001:db8::ffff:1") != client("2001:db8:0:1::1")
    assert client("::ffff:10.0.0.1") == client("10.0.0.1") != client("10.0.0.2")
    assert client("fe80::1%eth0") == client("fe80::2")


def test_the_oldest_connection_of_who_has_the_most_makes_room() -> None:
    assert makes_room([], "a", most=4, most_of_each=2) is None
    assert makes_room(["b", "a"], "a", most=4, most_of_each=2) is None
    assert makes_room(["b", "a", "a"], "a", most=4, most_of_each=2) == 1  # it has its part
    assert makes_room(["b", "a", "c", "a"], "d", most=4, most_of_each=3) == 1  # there are no more places
