"""Which names the server answers to, and which pages may use it."""

import pytest

from server.admission.guard import check_host, check_origin
from server.protocol.errors import ApiError


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "app.localhost:1", "127.0.0.1:8000", "192.168.1.7", "[::1]:8000", "[fe80::1%eth0]",
     "localhost."],
)  # fmt: skip
def test_names_that_nobody_else_can_resolve_are_let_through(host):
    check_host(host, ())


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "127.0.0.1x", "[::1"
     ".evil.example]", "[::1", "[::1]evil.example", "[evil.example]", "localhost:80@evil.example", "localhost:x",
     "localhost:80:80", "127.0.0.1%evil.example", "localhost evil.example"],
)  # fmt: skip
def test_other_names_are_refused(host):
    with pytest.raises(ApiError) as caught:
        check_host(host, ("good.example",))
    assert (caught.value.status, caught.value.code) == (421, "host_not_allowed")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("good.example", ("good.example",)), ("GOOD.example:80", ("good.example",)), ("a.b.example", (".b.example",)),
     ("anything", ("*",))],
)  # fmt: skip
def test_allowed_names_are_let_through(host, allowed):
    check_host(host, allowed)


OWN = "localhost:8000"


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a program
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8000"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost:8000"},  # a browser of before 2020
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"},
        {"Origin": "https://app.example"},
    ],
)
@pytest.mark.parametrize("is_socket", [False, True])
def test_own_pages_programs_and_allowed_origins_pass(headers, is_socket):
    check_origin("GET" if is_socket else "POST", headers, OWN, ("https://app.example",), is_socket=is_socket)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://[::1"},
        {"Origin": "http://user@localhost:8000"},
    ],
)
@pytest.mark.parametrize("is_socket", [False, True])
def test_pages_of_other_sites_are_refused(headers, is_socket):
    with pytest.raises(ApiError) as caught:
        check_origin("GET" if is_socket else "POST", headers, OWN, ("https://app.example",), is_socket=is_socket)
    assert (caught.value.status, caught.value.code) == (403, "origin_not_allowed")


def test_reading_passes_because_the_browser_keeps_the_answer_to_itself():
    check_origin("GET", {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, OWN, (), is_socket=False)


def test_every_origin_may_be_allowed():
    check_origin("POST", {"Origin": "https://any.example"}, OWN, ("*",), is_socket=False)
