"""Who a client is, where proxies stand between."""

from __future__ import annotations

import pytest

from server.http.accepting.trusted_proxies import HERE, TrustedProxies, owner_of

PROXIES = TrustedProxies(["10.0.0.0/8", "192.168.1.1", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        (("10.1.2.3", 5), True), (("192.168.1.1", 5), True), (("192.168.1.2", 5), False),
        (("::ffff:10.1.2.3", 5, 0, 0), True), (("fd00::1", 5, 0, 0), True), (("fe80::1%eth0", 5, 0, 0), False),
        ("", False), (None, False),
    ],
)  # fmt: skip
def test_the_networks_of_the_setting_are_trusted(peer: object, is_trusted: bool) -> None:
    assert PROXIES.trusts(peer) == is_trusted
    assert not TrustedProxies().trusts(peer)


@pytest.mark.parametrize(
    ("forwarded_for", "forwarded", "client"),
    [
        (["1.2.3.4"], [], "1.2.3.4"),
        (["9.9.9.9, 1.2.3.4, 10.0.0.1"], [], "1.2.3.4"),
        (["9.9.9.9", "1.2.3.4"], [], "1.2.3.4"),
        (["1.2.3.4:5678"], [], "1.2.3.4"),
        (["[2001:db8::1]:443"], [], owner_of(("2001:db8::2", 1, 0, 0))),
        (["2001:db8::1"], [], owner_of(("2001:db8::2", 1, 0, 0))),
        (["::1"], [], HERE),
        (["1.2.3.4, nonsense"], [], None),
        (["10.0.0.1, 10.0.0.2"], [], None),
        (["1.2.3.4" + ", 10.0.0.1" * 1000], [], None),
        ([":::"], [], None),
        ([""], [], None),
        ([], ["for=9.9.9.9, for=1.2.3.4;proto=https;by=10.0.0.1"], "1.2.3.4"),
        ([], ['For="[2001:db8::1]:443"'], owner_of(("2001:db8::2", 1, 0, 0))),
        ([], ["for=unknown"], None),
        ([], ["by=10.0.0.2; FOR = 1.2.3.4 ;proto=https"], "1.2.3.4"),
        ([], ["for=1.2.3.4"] + ["for=10.0.0.1"] * 3, "1.2.3.4"),
        ([], ["x" + " " * 8000 + "y"] * 100, None),  # does not take minutes
        (["1.2.3.4"], ["for=5.6.7.8"], "1.2.3.4"),
        ([], [], None),
    ],
)
def test_the_last_address_that_is_no_proxy_is_the_client(
    forwarded_for: list[str], forwarded: list[str], client: str | None
) -> None:
    assert PROXIES.client_of(forwarded_for, forwarded) == client
