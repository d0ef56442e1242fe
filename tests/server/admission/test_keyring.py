"""Keys: who is let in, what a key's holder may do, and that no key is ever shown."""

import os
from pathlib import Path

import pytest

from server.admission.keyring import ANYBODY, NOBODY, KeyFileError, KeyRing, presented_key
from server.protocol.errors import ApiError
from tests.server.conftest import still_limits

ALICE, BOB, ADMIN = "alice-secret-1", "bob-secret-22", "admin-secret-3"


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# keys\n{ALICE} alice priority=-5\n\n{BOB}\n")
    return path


def test_without_keys_everybody_comes_in():
    ring = KeyRing()
    assert ring.identify(None) is ANYBODY
    assert ring.identify("whatever a client sends") is ANYBODY
    assert ANYBODY.cache_salt("mine") == "mine"
    ANYBODY.check_priority(-(2**31))


@pytest.mark.parametrize("key", [None, "", "wrong", ALICE + "x", ALICE[:-1], "é" * 20, "\udcff" * 9])
def test_with_keys_nobody_else_comes_in(key_file, key):
    with pytest.raises(ApiError) as caught:
        KeyRing(file=key_file).identify(key)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.headers["WWW-Authenticate"].startswith("Bearer")
    assert not key or key not in caught.value.message


def test_a_key_has_a_name_a_salt_and_a_least_priority(key_file):
    ring = KeyRing([f"{ADMIN} third"], key_file)
    alice, bob, third = ring.identify(ALICE), ring.identify(BOB), ring.identify(ADMIN)
    assert (alice.name, third.name) == ("alice", "third")
    assert BOB not in bob.name
    salts = {tenant.cache_salt(asked) for tenant in (alice, bob, third) for asked in (None, "a", "b")}
    assert len(salts) == 9
    assert not any(ALICE in salt or BOB in salt for salt in salts)
    alice.check_priority(-5)
    alice.check_priority(None)
    with pytest.raises(ApiError, match="priority is -6; with this key it must be at least -5"):
        alice.check_priority(-6)
    with pytest.raises(ApiError, match="must be at least 0"):
        bob.check_priority(-1)


def test_tenants_are_told_apart_by_their_names_where_there_are_several(key_file):
    ring = KeyRing([f"{ADMIN} third"], key_file, ["operator-key"])
    assert [ring.caller_of(ring.identify(key)) for key in (ALICE, ADMIN)] == ["alice", "third"]
    assert ring.caller_of(ring.identify_admin("operator-key")) == "admin"


def test_a_client_that_is_the_only_one_is_told_from_nobody():
    for ring in (KeyRing(), KeyRing([f"{ALICE} alice", f"{BOB} alice", f"{ADMIN} front"])):
        assert ring.caller_of(ring.identify(ALICE)) == NOBODY


def test_what_is_stored_has_an_owner_for_each_key(key_file):
    alice, bob = (KeyRing(file=key_file).identify(key) for key in (ALICE, BOB))
    assert len({alice.owner, bob.owner, ANYBODY.owner}) == 3
    assert alice.salt not in alice.owner


def test_no_client_can_make_its_salt_that_of_another(key_file):
    ring = KeyRing(file=key_file)
    alice, bob = ring.identify(ALICE), ring.identify(BOB)
    assert bob.cache_salt(alice.cache_salt(None)) != alice.cache_salt(None)


def test_the_administrator_is_a_client_too_and_clients_are_no_administrators(key_file):
    ring = KeyRing(file=key_file, admin_keys=[ADMIN])
    assert ring.identify(ADMIN).is_admin
    assert ring.identify_admin(ADMIN).is_admin
    with pytest.raises(ApiError) as caught:
        ring.identify_admin(ALICE)
    assert caught.value.status == 403
    for key in (None, "wrong"):
        with pytest.raises(ApiError) as caught:
            ring.identify_admin(key)
        assert caught.value.status == 401


def test_without_an_admin_key_admin_routes_are_off():
    with pytest.raises(ApiError) as caught:
        KeyRing([ALICE]).identify_admin(ALICE)
    assert caught.value.status == 404


def test_an_admin_key_alone_leaves_generating_open():
    ring = KeyRing(admin_keys=[ADMIN])
    assert ring.identify(None) is ANYBODY


def test_reloading_takes_new_keys_and_drops_old_ones(key_file):
    ring = KeyRing(file=key_file)
    key_file.write_text("brand-new-key new\n")
    ring.reload()
    assert ring.identify("brand-new-key").name == "new"
    with pytest.raises(ApiError):
        ring.identify(ALICE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no key"),
        (b"# nothing\n", "has no key"),
        (b"short\n", "line 1: a key must have at least 8 visible ASCII"),
        (b"good-enough-key\n\nbad\x01key-bad\n", "line 3"),
        ("schlüssel-lang\n".encode(), "line 1"),
        (b"good-enough-key name surplus\n", "'surplus'"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_and_what_held_before_still_holds(key_file, content, message):
    ring = KeyRing(file=key_file)
    key_file.write_bytes(content)
    with pytest.raises(KeyFileError, match=message) as caught:
        ring.reload()
    assert "good-enough-key" not in str(caught.value)
    assert ring.identify(ALICE).name == "alice"


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, what in ((pipe, "a named pipe"), (tmp_path, "a folder"), (Path(os.devnull), "a device")):
        with pytest.raises(KeyFileError, match=f"the keys in {path} cannot be read: it is {what}"):
            KeyRing(file=path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(KeyFileError, match="No such file"):
        KeyRing(file=tmp_path / "none")


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"Authorization": "bearer  abc "}, "abc"),
        ({"Authorization": "Basic abc"}, None),
        ({"Authorization": "Bearer "}, None),
        ({"x-api-key": "abc"}, "abc"),
        ({"Authorization": "Basic zzz", "x-api-key": "abc"}, "abc"),
        ({"Sec-WebSocket-Protocol": "eagre, eagre-api-key.abc"}, "abc"),
        ({"Sec-WebSocket-Protocol": "eagre"}, None),
    ],
)
def test_where_a_key_stands(headers, key):
    assert presented_key(headers) == key


def test_a_line_may_have_limits(key_file):
    key_file.write_text(
        f"{ALICE} alice -5 2.5 3 9000\n{BOB} - priority=2 - 4\n{ADMIN} third - - -\nbrand-new-key alice -5 2.5 3 9000\n"
    )
    ring = KeyRing(file=key_file)
    alice, bob, third = ring.identify(ALICE), ring.identify(BOB), ring.identify(ADMIN)
    assert (alice.least_priority, bob.least_priority, third.least_priority) == (-5, 2, 0)
    assert alice.account.limits == (2.5, 3, 9000)
    assert bob.account.limits == (None, 4, None)
    assert bob.name.startswith("key-")
    assert not third.account.limits.is_limited
    # The old and the new key of one client.
    assert ring.identify("brand-new-key").account is alice.account


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("name soon", "line 2: a key's priority must be a whole number, 'priority=N' or '-', not 'soon'"),
        ("name 0 fast", "line 2: requests a second must be a number from 0.001 .* not 'fast'"),
        ("name - 1 -1", "line 2: streams at once must be a whole number from 1 .* not '-1'"),
        ("name - 1 1 1e9", "line 2: tokens a minute must be a whole number from 1 .* not '1e9'"),
        ("name - 1 1 1 1", "line 2: behind the limits comes nothing"),
        ("alice - 9", "line 2: keys of one name share their limits; alice has others above"),
    ],
)
def test_a_wrong_limit_is_refused_with_its_line(key_file, line, message):
    key_file.write_text(f"{ALICE} alice\n{BOB} {line}\n")
    with pytest.raises(KeyFileError, match=message) as caught:
        KeyRing(file=key_file)
    assert BOB not in str(caught.value)


@pytest.mark.usefixtures(still_limits.__name__)
def test_a_reload_keeps_what_was_used(key_file):
    key_file.write_text(f"{ALICE} alice - 0.01 - 100\n")
    ring = KeyRing(file=key_file)
    before = ring.identify(ALICE)
    before.account.begin_request()
    before.account.charge(60)
    key_file.write_text(f"brand-new-key alice - 0.01 - 100\n{ALICE} alice - 0.01 - 100\n{BOB} bob\n")
    ring.reload()
    account = ring.identify("brand-new-key").account
    assert account.usage.num_requests == 1
    assert account.headers()["x-ratelimit-remaining-requests"] == "0"
    assert account.headers()["x-ratelimit-remaining-tokens"] == "40"
    assert ring.holds(before)
    # A limit that changes begins anew, and a socket that is open goes on with it.
    key_file.write_text(f"{ALICE} alice - - - 100\n")
    ring.reload()
    assert ring.holds(before)
    before.account.begin_request()
    assert before.account.headers()["x-ratelimit-remaining-tokens"] == "40"
