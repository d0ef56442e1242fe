"""Where a server listens: Unix socket, TLS, a port for metrics; and what SIGHUP reads again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import stat
from pathlib import Path

import aiohttp
import pytest

from server.admission import unix_socket
from server.cli.process import EXIT_OK, EXIT_USAGE
from server.http.accepting.acceptor import BEGUN_AT_ONCE
from tests.patience import PATIENCE_S
from tests.server.admission.test_certificate import make_certificate, needs_openssl
from tests.server.cli.test_serve import Life, finish

ALICE, BOB = "alice-secret-1", "bob-secret-22"


async def stop(serving: asyncio.Task[int]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert await finish(serving) == EXIT_OK


async def test_a_unix_socket_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "eagre.socket"
    life = Life()
    serving = await life.start_ready(uds=str(path))
    assert life.lines == [f"Eagre serves fake at unix:{path}"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        async with http.get("http://whatever.example/v1/models") as response:  # no web page can get here
            assert response.status == 200
        headers = {"Origin": "https://evil.example"}
        async with http.post("http://x/v1/completions", headers=headers, json={"prompt": "a"}) as response:
            assert response.status == 403
    await stop(serving)
    assert not path.exists()


@pytest.mark.parametrize("door", ["port", "socket", "metrics"])
async def test_a_flood_of_connections_is_begun_in_small_parts(tmp_path: Path, door: str) -> None:
    """And none of it is lost, however many wait."""
    path, num_clients = str(tmp_path / "eagre.socket"), 10 * BEGUN_AT_ONCE
    life = Life()
    serving = await life.start_ready(**{"port": {}, "socket": {"uds": path}, "metrics": {"metrics_port": 0}}[door])
    port = int(life.lines[0].rpartition(" ")[2]) if door == "metrics" else life.port
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(num_clients):  # the system connects them while the loop does nothing
            client = stack.enter_context(socket.socket(socket.AF_UNIX if door == "socket" else socket.AF_INET))
            client.connect(path if door == "socket" else ("127.0.0.1", port))
            client.sendall(b"GET /liveness HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            client.setblocking(False)
            clients.append(client)
        tasks = most_new = 0
        answered: set[socket.socket] = set()
        async with asyncio.timeout(PATIENCE_S):
            while len(answered) < num_clients:
                await asyncio.sleep(0)
                num_tasks = len(asyncio.all_tasks())
                tasks, most_new = num_tasks, max(most_new, num_tasks - tasks if tasks else 0)
                for client in set(clients) - answered:
                    with contextlib.suppress(BlockingIOError):
                        assert client.recv(1 << 12).startswith(b"HTTP/1.1 200 ")
                        answered.add(client)
        assert 0 < most_new <= 2 * BEGUN_AT_ONCE  # one to begin it and one to serve it
    await stop(serving)


async def test_several_addresses_share_a_port() -> None:
    life = Life()
    serving = await life.start_ready(host="127.0.0.1, 127.0.0.2", metrics_port=0)
    assert f"open http://127.0.0.1:{life.port}/ in a browser" in life.lines[0]
    async with aiohttp.ClientSession() as http:
        for host in ("127.0.0.1", "127.0.0.2"):
            async with http.get(f"http://{host}:{life.port}/v1/models") as response:
                assert response.status == 200
    await stop(serving)


async def test_metrics_have_a_port_of_their_own() -> None:
    life = Life()
    serving = await life.start_ready(metrics_port=0, api_keys=(ALICE,))
    port = int(life.lines[0].rpartition(" ")[2])
    async with aiohttp.ClientSession() as http:
        async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
            assert "eagre_asyncio_tasks" in await response.text()
        async with http.get(f"{life.url}/metrics") as response:
            assert response.status == 401
    await stop(serving)


async def test_sighup_reads_the_keys_again_and_keeps_them_where_the_file_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{ALICE} alice\n")
    life = Life()
    serving = await life.start_ready(api_key_file=str(path))
    async with aiohttp.ClientSession() as http:

        async def status_of(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            async with http.get(life.url + "/v1/models", headers=headers) as response:
                return response.status

        assert (await status_of(ALICE), await status_of(BOB)) == (200, 401)
        path.write_text(f"{BOB} bob\n")
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(PATIENCE_S):
            while await status_of(BOB) != 200:
                await asyncio.sleep(0.01)
        assert await status_of(ALICE) == 401
        for bad in ("short\n", "# nothing\n"):
            path.write_text(bad)
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.1)
            assert (await status_of(BOB), await status_of(ALICE)) == (200, 401)
    await stop(serving)


async def test_sighup_goes_on_where_a_pipe_has_taken_the_place_of_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{ALICE} alice\n")
    life = Life()
    serving = await life.start_ready(api_key_file=str(path))
    path.unlink()
    os.mkfifo(path)
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGHUP)
    path.unlink()
    path.write_text(f"{BOB} bob\n")
    os.kill(os.getpid(), signal.SIGHUP)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {BOB}"}) as http, asyncio.timeout(PATIENCE_S):
        while True:
            async with http.get(life.url + "/v1/models") as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.01)
    await stop(serving)


@pytest.mark.parametrize("content", [None, "", "short\n"])
async def test_a_server_does_not_start_with_a_bad_file_of_keys(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    life = Life()
    assert await finish(life.start(api_key_file=str(path))) == EXIT_USAGE
    assert str(path) in life.lines[0]
    assert "short" not in life.lines[0]


@needs_openssl
async def test_tls_and_its_reload(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path, "served")
    first = chain.read_text()
    life = Life()
    serving = await life.start_ready(ssl_certfile=str(chain), ssl_keyfile=str(key))
    assert life.lines[0].endswith(f"open https://127.0.0.1:{life.port}/ in a browser")

    async def is_trusted(certificate: str) -> bool:
        context = ssl.create_default_context(cadata=certificate)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
            try:
                async with http.get(f"https://127.0.0.1:{life.port}/liveness") as response:
                    return response.status == 200
            except aiohttp.ClientConnectorCertificateError:
                return False

    assert await is_trusted(first)
    other_chain, other_key = make_certificate(tmp_path, "other")
    second = other_chain.read_text()
    assert not await is_trusted(second)
    chain.write_text("no certificate")
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0.2)
    assert await is_trusted(first)
    chain.write_text(second)
    key.write_text(other_key.read_text())
    os.kill(os.getpid(), signal.SIGHUP)
    async with asyncio.timeout(PATIENCE_S):
        while not await is_trusted(second):
            await asyncio.sleep(0.02)
    assert not await is_trusted(first)

    # Whatever stands there meanwhile, no client is refused.
    asking = [asyncio.create_task(is_trusted(second)) for _ in range(3)]
    for spoil in (lambda: chain.write_text(second[:100]), chain.unlink, lambda: os.mkfifo(chain)):
        spoil()
        os.kill(os.getpid(), signal.SIGHUP)
        asking += [asyncio.create_task(is_trusted(second)) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert all(await asyncio.gather(*asking))
    await stop(serving)


async def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.create_server(("127.0.0.1", 0)) as taken, unix_socket.listen_at(path) as other:
        other.listen()
        port = taken.getsockname()[1]
        life = Life()
        assert await finish(life.start(metrics_port=port)) == EXIT_USAGE
        assert f"cannot listen on 127.0.0.1:{port}" in life.lines[0]
        life = Life()
        assert await finish(life.start(uds=str(path))) == EXIT_USAGE
        assert "another server listens there" in life.lines[0]
        assert path.is_socket()
