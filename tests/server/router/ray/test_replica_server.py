"""A server in a process of its own: started, asked, stopped, lost. The program is a small stand-in."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from server.router.local import supervisor
from server.router.ray.autoscaling import ReplicaLoad
from server.router.ray.replica_server import ReplicaServer, ServerUnwell, free_port
from tests.patience import PATIENCE_S

KEY = "a-key-of-the-front"
STAND_IN = """
import asyncio, os, signal
from aiohttp import web

ready = True
reloads = 0

def read_keys():
    global reloads
    reloads += 1

async def probe(request):
    if request.path == "/readiness" and not ready:
        return web.json_response({"status": "draining", "detail": "the server is shutting down"}, status=503)
    return web.json_response({"status": "ready"})

async def health(request):
    assert request.headers["Authorization"] == "Bearer " + os.environ["EAGRE_FRONT_KEY"]
    stats = {"num_waiting_tokens": 30 + reloads, "num_running": 2}
    return web.json_response({"models": {"a": {"stats": stats}, "b": {"stats": stats}, "unloaded": {}}})

def begin_drain():
    global ready
    ready = False
    asyncio.get_running_loop().call_later(float(os.environ["STAND_IN_DRAINS"]), os._exit, 0)

async def main():
    app = web.Application()
    app.router.add_get("/liveness", probe)
    app.router.add_get("/readiness", probe)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, begin_drain)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read_keys)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # as a server does: its supervisor blocks it until then
    if "EAGRE_UDS" in os.environ:
        await web.UnixSite(runner, os.environ["EAGRE_UDS"]).start()
    else:
        await web.TCPSite(runner, os.environ["EAGRE_HOST"], int(os.environ["EAGRE_PORT"])).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, str(script)))


def place(address: str, drains: float = 0.0) -> ReplicaServer:
    return ReplicaServer(address, {"STAND_IN_DRAINS": str(drains)}, "/no/such/folder", 8, KEY)


async def checked_for_ever(server: ReplicaServer) -> None:
    while True:
        await server.check()


@pytest.mark.usefixtures("program")
async def test_a_server_is_ready_tells_its_load_and_ends_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "of-the-socket"
    folder.mkdir()
    server = place(f"unix:{folder}/replica.sock", drains=1.0)
    await server.wait_ready()
    await server.check()
    assert await server.load() == ReplicaLoad(60, 0.5)
    server.reload()
    async with asyncio.timeout(PATIENCE_S):
        while (await server.load()).queued_tokens != 62:  # one more for each of its models: it has had the signal
            pass
    stopping = asyncio.create_task(server.stop(PATIENCE_S))
    with pytest.raises(ServerUnwell, match="answers /readiness with 503: the server is shutting down"):
        await checked_for_ever(server)
    await stopping
    assert not folder.exists()
    with pytest.raises(ServerUnwell, match="has ended with status 0"):
        await server.check()


@pytest.mark.parametrize("body", ["<html>", "[]"])
async def test_an_answer_of_another_program_is_no_sign_of_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    script = tmp_path / "stranger.py"
    script.write_text(STAND_IN.replace("web.json_response(", f"web.Response(text={body!r}) or web.json_response("))
    monkeypatch.setattr(supervisor, "COMMAND", (sys.executable, str(script)))
    server = place(f"unix:{tmp_path}/of-it/replica.sock")
    (tmp_path / "of-it").mkdir()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with pytest.raises(ServerUnwell, match="does not answer") as refused:
                    await server.check()
                if "no JSON" in str(refused.value):
                    break
        with pytest.raises(ServerUnwell, match="does not say how much"):
            await server.load()
    finally:
        await server.stop(0.01)


@pytest.mark.usefixtures("program")
async def test_a_server_that_does_not_end_is_killed_and_one_that_is_lost_is_noticed() -> None:
    server = place(f"http://127.0.0.1:{free_port('127.0.0.1')}", drains=60)
    await server.wait_ready()
    assert await server.load() == ReplicaLoad(60, 0.5)
    await server.stop(0.01)
    assert server.exited.result() == -9
    with pytest.raises(ServerUnwell, match="has ended with status -9"):
        await server.wait_ready()
    with pytest.raises(ServerUnwell, match="does not say how much it has to do"):
        await server.load()
