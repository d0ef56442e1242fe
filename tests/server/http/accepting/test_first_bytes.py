"""Whose connections go before those of strangers."""

from __future__ import annotations

import pytest

from server.admission.keyring import KeyRing
from server.http.accepting.first_bytes import FirstBytes

KEY = b"client-key-1"


def owner(head: bytes, *, prefix: str | None = None, is_encrypted: bool = False) -> str | None:
    return FirstBytes(prefix, KeyRing((f"{KEY.decode()} ann",)), is_encrypted=is_encrypted).owner(head)


@pytest.mark.parametrize("path", [b"/liveness", b"/readiness", b"/health", b"/metrics", b"/liveness?x=1"])
def test_probes_go_first(path: bytes) -> None:
    assert owner(b"GET " + path + b" HTTP/1.1\r\n") == ""
    assert owner(b"HEAD " + path + b" HTTP/1.1\r\n") == ""
    assert owner(b"GET /llm" + path + b" HTTP/1.1\r\n", prefix="/llm") == ""
    assert owner(b"POST " + path + b" HTTP/1.1\r\n") is None
    assert owner(b"GET " + path + b" HTTP/1.1\r\n", is_encrypted=True) is None


@pytest.mark.parametrize("head", [b"Authorization: Bearer ", b"authorization:bearer ", b"X-Api-Key: "])
def test_a_valid_key_goes_first_and_another_does_not(head: bytes) -> None:
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + head
    assert owner(request + KEY + b"\r\n\r\n") == "key ann"
    assert owner(request + KEY + b"2\r\n\r\n") is None
    assert owner(request + KEY) is None  # which may go on


@pytest.mark.parametrize("head", [b"", b"\x16\x03\x01", b"GET /livenessx HTTP/1.1", b"GET /v1/models HTTP/1.1\r\n\r\n"])
def test_others_do_not(head: bytes) -> None:
    assert owner(head) is None
