"""Who gets past the doors: keys, host names, web origins; every route is swept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from server.cli.listeners import start_sites
from server.http.app import build_metrics_app, make_runner
from server.http.entry.guard import GUARD, PUBLIC_ROUTES
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

ALICE, BOB, ADMIN = "alice-secret-1", "bob-secret-22", "admin-secret-3"
KEYS = (f"{ALICE} alice", f"{BOB} bob priority=-3")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(
    server: RunningServer, method: str, path: str, headers: dict[str, str] | None = None, **options: Any
) -> tuple[int, dict[str, Any]]:
    async with server.http.request(method, server.url + path, headers=headers, **options) as response:
        body = await response.read()
        return response.status, json.loads(body) if response.content_type == "application/json" and body else {}


def routes_of(server: RunningServer) -> list[tuple[str, str, str]]:
    """(method, path as registered, path to ask) of every route that the application has."""
    found = []
    for route in server.app.router.routes():
        assert route.resource is not None
        canonical = route.resource.canonical
        path = canonical.replace("{id}", "x").replace("{path}", "style.css")
        found.append((route.method, canonical, path))
    assert len(found) > 25
    return found


def is_error(path: str, body: dict[str, Any], kind: str) -> bool:
    """Whether the body is an error in the form of its route; Ollama's has a sentence and no type."""
    is_ollama = path.startswith("/api/") and path != "/api/hello"  # which Claude Code looks for
    return isinstance(body["error"], str) if is_ollama else body["error"]["type"] == kind


@pytest.mark.parametrize("headers", [{}, bearer("wrong-key-wrong"), {"Authorization": "Basic " + ALICE}])
async def test_without_a_key_every_route_is_closed_but_the_public_ones(
    start_server: StartServer, headers: dict[str, str]
) -> None:
    server = await start_server(api_keys=KEYS, admin_keys=(ADMIN,))
    for method, canonical, path in routes_of(server):
        status, body = await ask(server, method, path, headers)
        if canonical in PUBLIC_ROUTES:
            assert status == 200, (method, path)
        else:
            assert status == 401, (method, path)
            assert method == "HEAD" or is_error(path, body, "authentication_error"), path
    assert (await ask(server, "GET", "/static/style.css", headers))[0] == 200, "the page asks for the key"
    others = [("GET", "/nowhere"), ("PATCH", "/v1/completions"), ("GET", "/v1/../admin/trace"), ("OPTIONS", "/metrics")]
    for method, path in others:
        assert (await ask(server, method, path, headers))[0] == 401
    assert not server.engine.submitted


async def test_admin_routes_want_the_admin_key_and_are_off_without_one(start_server: StartServer) -> None:
    server = await start_server(api_keys=KEYS, admin_keys=(ADMIN,))
    closed = await start_server(api_keys=KEYS)
    open_to_all = await start_server()
    num_routes = 0
    for method, canonical, path in routes_of(server):
        if canonical.startswith("/admin/") and method != "HEAD":
            num_routes += 1
            assert (await ask(server, method, path, bearer(ALICE)))[0] == 403
            assert (await ask(server, method, path, bearer(ADMIN)))[0] in (200, 400)
            assert (await ask(closed, method, path, bearer(ALICE)))[1]["error"]["code"] == "admin_off"
            assert (await ask(open_to_all, method, path))[0] == 404
    assert num_routes == 12
    assert (await ask(server, "POST", "/%61dmin/pause", bearer(ALICE)))[0] == 403


@pytest.mark.parametrize("headers", [bearer(ALICE), {"Authorization": f"bearer  {ALICE}"}, {"x-api-key": ALICE}])
async def test_a_key_opens_the_routes(start_server: StartServer, headers: dict[str, str]) -> None:
    server = await start_server(api_keys=KEYS)
    assert (await ask(server, "POST", "/v1/completions", headers, json={"prompt": "ab"}))[0] == 200
    assert (await ask(server, "GET", "/metrics", headers))[0] == 200
    assert (await ask(server, "GET", "/nowhere", headers))[0] == 404


async def test_a_tenant_has_its_salt_share_and_least_priority(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, api_keys=KEYS)
    for key in (ALICE, BOB):
        for salt in ({}, {"cache_salt": "mine"}):
            body = {"prompt": "ab", **salt}
            assert (await ask(server, "POST", "/v1/completions", bearer(key), json=body))[0] == 200
    assert len({str(options["cache_salt"]) for options in engine.options.values()}) == 4
    assert not any(key in str(engine.options) for key in (ALICE, BOB))
    assert list(engine.tenants.values()) == ["alice", "alice", "bob", "bob"]
    early = {"prompt": "ab", "priority": -3}
    status, body = await ask(server, "POST", "/v1/completions", bearer(ALICE), json=early)
    assert (status, body["error"]["param"]) == (400, "priority")
    assert (await ask(server, "POST", "/v1/completions", bearer(BOB), json=early))[0] == 200


async def test_names_that_were_resolved_to_this_machine_are_refused(start_server: StartServer) -> None:
    server = await start_server(allowed_hosts=("Friend.example", ".sub.example"))
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:80", "friend.example", "a.sub.example:9"):
        assert (await ask(server, "GET", "/v1/models", {"Host": host}))[0] == 200, host
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"):
        for method, _, path in routes_of(server):
            assert (await ask(server, method, path, {"Host": host, "Origin": f"http://{host}"}))[0] == 421, path
    with_keys = await start_server(api_keys=KEYS)
    assert (await ask(with_keys, "GET", "/v1/models", {"Host": "evil.example", **bearer(ALICE)}))[0] == 200
    assert not server.engine.submitted


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Content-Type": "text/plain"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
async def test_a_page_of_another_site_cannot_make_a_browser_change_anything(
    start_server: StartServer, headers: dict[str, str]
) -> None:
    server = await start_server()
    for method, _, path in routes_of(server):
        if method not in ("GET", "HEAD"):
            status, body = await ask(server, method, path, headers, data=b'{"prompt":"ab"}')
            assert status == 403, path
            assert is_error(path, body, "permission_error"), path
    assert not server.engine.submitted
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert (await ask(server, "POST", "/v1/completions", own, json={"prompt": "ab"}))[0] == 200


async def test_cors_for_allowed_origins_alone(start_server: StartServer) -> None:
    friend = "https://friend.example"
    server = await start_server(api_keys=KEYS, allowed_origins=(friend,))
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-sdk",
        "Access-Control-Request-Private-Network": "true",
    }
    async with server.http.options(server.url + "/v1/completions", headers={"Origin": friend, **preflight}) as response:
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Origin"] == friend
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-sdk"
        assert "DELETE" in response.headers["Access-Control-Allow-Methods"]
        assert response.headers["Access-Control-Allow-Private-Network"] == "true"
        assert response.headers["Vary"] == "Origin"
    async with server.http.options(
        server.url + "/v1/completions", headers={"Origin": "https://evil.example", **preflight}
    ) as response:
        assert response.status == 403
        assert "Access-Control-Allow-Origin" not in response.headers
    headers = {"Origin": friend, "Sec-Fetch-Site": "cross-site"}
    for key, status in (({}, 401), (bearer(ALICE), 200)):  # a page may read why it was refused
        async with server.http.post(
            server.url + "/v1/completions", headers={**headers, **key}, json={"prompt": "ab", "stream": True}
        ) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (status, friend)
            assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]
            await response.read()
    anybodys = await start_server(allowed_origins=("*",))
    async with anybodys.http.get(anybodys.url + "/v1/models", headers={"Origin": "https://x.example"}) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize(
    ("origin", "is_local"),
    [
        ("http://localhost", True),
        ("http://localhost:8080", True),
        ("https://127.0.0.1:3000", True),
        ("http://[::1]:3000", True),
        ("http://notlocalhost", False),
        ("http://localhost.evil.example", False),
        ("http://localhost@evil.example", False),
        ("http://evil.example/localhost", False),
        ("http://[::1", False),
        ("null", False),
    ],
)
async def test_pages_of_this_machine_may_be_allowed_at_any_port(
    start_server: StartServer, origin: str, is_local: bool
) -> None:
    server = await start_server(allowed_origins=("localhost",))
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    async with server.http.options(server.url + "/v1/completions", headers=preflight) as response:
        assert response.status == (200 if is_local else 403)
        assert response.headers.get("Access-Control-Allow-Origin") == (origin if is_local else None)
    async with server.http.post(
        server.url + "/v1/completions", headers={"Origin": origin}, json={"prompt": "ab"}
    ) as response:
        assert response.status == (200 if is_local else 403)


@pytest.mark.parametrize(
    ("headers", "sees_figures"),
    [({}, False), (bearer("wrong-key-wrong"), False), (bearer(ALICE), True), (bearer(ADMIN), True)],
)
async def test_health_needs_no_key_and_its_figures_do(
    start_server: StartServer, headers: dict[str, str], sees_figures: bool
) -> None:
    server = await start_server(api_keys=KEYS, admin_keys=(ADMIN,))
    status, body = await ask(server, "GET", "/health", headers)
    assert (status, body["status"]) == (200, "ready")
    assert ("models" in body, "stats" in body) == (sees_figures, sees_figures)


async def test_a_socket_is_opened_by_a_key_in_a_header_or_a_subprotocol(start_server: StartServer) -> None:
    server = await start_server(api_keys=KEYS)
    in_protocol = [Subprotocol("eagre"), Subprotocol(f"eagre-api-key.{ALICE}")]
    for options in ({"subprotocols": in_protocol}, {"additional_headers": bearer(ALICE)}):
        async with open_socket(server, **options) as socket:
            assert socket.subprotocol == ("eagre" if "subprotocols" in options else None)
            await send(socket, type="generate", id="a", prompt="x")
            assert (await read_to_end(socket, "a"))[-1]["type"] == "done"
    assert set(server.engine.tenants.values()) == {"alice"}
    for protocols in (None, [Subprotocol("eagre")], [Subprotocol("eagre"), Subprotocol("eagre-api-key.wrong-key-1")]):
        with pytest.raises(InvalidStatus) as refused:
            async with open_socket(server, subprotocols=protocols):
                pass
        assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as foreign:
        async with open_socket(server, subprotocols=in_protocol, origin="https://evil.example"):
            pass
    assert foreign.value.response.status_code == 403


async def test_a_key_that_is_taken_away_begins_nothing_more_and_what_runs_goes_on(
    start_server: StartServer, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{ALICE} alice\n{BOB} bob\n")
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, api_key_file=str(path), admin_keys=(ADMIN,))
    keys = server.app[GUARD].keys
    assert keys is not None
    streamed = {"prompt": "undisturbed", "stream": True}
    async with (
        open_socket(server, additional_headers=bearer(ALICE)) as gone,
        open_socket(server, additional_headers=bearer(BOB)) as stays,
        server.http.post(server.url + "/v1/completions", json=streamed, headers=bearer(ALICE)) as running,
        server.http.get(server.url + "/engine/events", headers=bearer(ALICE)) as endless,
    ):
        await eventually(lambda: len(engine.running) == 1)
        path.write_text(f"{BOB} bob\n")
        keys.reload()
        for socket in (gone, stays):
            await send(socket, type="generate", id="a", prompt="x")
        with pytest.raises(ConnectionClosed) as closed:
            await gone.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        async with asyncio.timeout(PATIENCE_S):
            await endless.read()
        await eventually(lambda: len(engine.running) == 2)
        engine.step(20)
        assert (await read_to_end(stays, "a"))[-1]["type"] == "done"
        chunks = chunks_of(await running.read())
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == "undisturbed"
        assert (await ask(server, "POST", "/v1/completions", bearer(ALICE), json={"prompt": "a"}))[0] == 401


async def test_keys_are_never_logged_but_the_tenants_name_is(
    start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from server.startup.logs import set_up_logs

    set_up_logs("debug", "json")
    server = await start_server(api_keys=KEYS, admin_keys=(ADMIN,))
    await ask(server, "POST", "/v1/completions", bearer(ALICE), json={"prompt": "ab"})
    await ask(server, "POST", "/v1/completions", bearer("wrong-secret-9"), json={"prompt": "ab"})
    await ask(server, "POST", "/admin/pause", bearer(ADMIN))
    async with open_socket(server, subprotocols=[Subprotocol(f"eagre-api-key.{ALICE}")]):
        pass  # aiohttp would warn that no subprotocol is known, and list them

    def crash(*_: object, **__: object) -> None:
        key = ALICE  # a local variable, as handlers have
        raise KeyError(len(key))

    server.engine.submit = crash  # type: ignore[method-assign]
    status, _ = await ask(server, "POST", "/v1/completions", bearer(ALICE), json={"prompt": "ab"})
    assert status == 500
    logged = capsys.readouterr().err
    events = [json.loads(line) for line in logged.splitlines()]
    assert {event.get("tenant") for event in events if event["event"] == "access"} >= {"alice", "admin"}
    assert any(event["event"] == "request_failed" for event in events)
    for secret in (ALICE, ADMIN, BOB, "wrong-secret-9"):
        assert secret not in logged


async def test_metrics_on_a_port_of_their_own_need_no_key_and_are_nowhere_else(start_server: StartServer) -> None:

    server = await start_server(api_keys=KEYS, metrics_port=0)
    for path in ("/metrics", "/health"):
        assert (await ask(server, "GET", path, bearer(ALICE)))[0] == 404
    runner = make_runner(build_metrics_app(server.served))
    await runner.setup()
    try:
        await start_sites(runner, ["127.0.0.1"], 0)
        own = RunningServer(
            f"http://127.0.0.1:{runner.addresses[0][1]}", server.http, server.engine, server.served, runner.app, runner
        )
        for path in ("/metrics", "/health", "/liveness", "/readiness"):
            assert (await ask(own, "GET", path))[0] == 200
            assert (await ask(own, "GET", path, {"Host": "evil.example"}))[0] == 421
        named = {(route.method, route.resource.canonical) for route in own.app.router.routes() if route.resource}
        for method, canonical, path in routes_of(server):
            if (method, canonical) not in named:
                options = {} if method in ("GET", "HEAD") else {"data": b"{"}
                status, body = await ask(own, method, path, bearer(ADMIN), **options)
                assert status in (404, 405), path
                assert method == "HEAD" or body["error"]["code"] in ("unknown_url", "method_not_allowed")
    finally:
        await runner.cleanup()


async def told_raw(server: RunningServer, head: str) -> bytes:
    """What the server answers within a moment to a head that no HTTP library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(head.encode("latin-1") + b"\r\n\r\n")
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/version", "localhost", b"421"),
        ("http://localhost@evil.example/version", "localhost", b"421"),
        ("http://localhost:80/version", "evil.example", b"200"),
        ("evil.example:443", "localhost", b"421"),
        ("/version", "[::1]evil.example", b"421"),
    ],
)
async def test_a_whole_url_as_target_stands_above_the_host_header(
    server: RunningServer, target: str, host: str, status: bytes
) -> None:
    method = "CONNECT" if "/" not in target else "GET"
    answer = await told_raw(server, f"{method} {target} HTTP/1.1\r\nHost: {host}")
    assert answer.split(b" ")[1] == status


@pytest.mark.parametrize("path", ["/engine/events", "/v1/stream", "/v1/responses", "/v1/responses/x", "/v1/streams/x"])
async def test_what_may_be_a_stream_has_no_head(server: RunningServer, path: str) -> None:
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + "A" * 22
    answer = await told_raw(server, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade}==")
    assert answer.split(b" ")[1] == b"405"


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/responses"])
@pytest.mark.parametrize(
    "wrong",
    [
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \xff\xfe",
        "Upgrade: web\xe1ocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Upgrade: websocket\r\nSec-WebSocket-Version: \xff\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Protocol: \xe1",
    ],
)
async def test_a_handshake_that_is_no_text_is_refused(server: RunningServer, path: str, wrong: str) -> None:
    answer = await told_raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n{wrong}")
    assert answer.split(b" ")[1] == b"426"
