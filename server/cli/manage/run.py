"""`eagre run`: fetches a model, serves it in the background if no server has it, and returns the server's address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import orjson

from engine.interface.python_process import python_command, python_environment
from server.cli.client import address
from server.cli.client.address import shown
from server.cli.client.errors import NoAnswer, NoServer
from server.cli.client.server_client import ServerClient
from server.cli.manage.known_servers import models_at
from server.cli.manage.server_record import ServerRecord, log_file, running_servers
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import ensure_model
from server.startup.model_settings import name_of
from server.startup.plain_text import one_line
from server.startup.progress import ProgressReporter

IDLE_S = 600  # after which a server in the background gives its memory back
POLL_S = 0.2


def server_of(model: str, url: str | None, api_key: str | None) -> tuple[str, str]:
    """The address of a server that has the model, and its name there; raises NoAnswer.

    That is the server at `url`. Without one, it is that at the default address or one that an earlier `run` has
    started, and where none of them has the model, one is started now.
    """
    name, is_free = name_of(model), True
    if url is not None:
        names = [str(found["id"]) for found in models_at(url, api_key)]
        if name not in names:
            raise NoAnswer(f"the server at {shown(url)} has no model {name}; it has {', '.join(names)}")
        return url, name
    records = running_servers()
    for record in records:
        if record.model == name:
            _wait_ready(partial(_is_alive, record), record.url, record.port)  # another `run` may load it just now
            return record.url, name
    for url in dict.fromkeys([address.DEFAULT_URL, *(record.url for record in records)]):
        try:
            names = [str(found["id"]) for found in models_at(url, api_key)]
        except NoServer:
            continue
        except NoAnswer:  # it loads, or wants another key
            names = []
        is_free = is_free and url != address.DEFAULT_URL
        if name in names:
            return url, name
    try:
        with ProgressReporter() as progress:
            ensure_model(model, progress)
    except ModelStoreError as error:
        raise NoAnswer(str(error)) from error
    port = urlsplit(address.DEFAULT_URL).port if is_free else None
    return _start(model, name, port or _free_port()), name


def _is_alive(record: ServerRecord) -> bool:
    return record.is_alive


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def _start(model: str, name: str, port: int) -> str:
    url, log = f"http://127.0.0.1:{port}", log_file(port)
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", name]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*python_command("-m", "server"), "serve", model, *flags, "--sleep-idle-seconds", str(IDLE_S)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=_environment(),
        )  # fmt: skip
    record = ServerRecord.of(process.pid, url, name, port)
    record.write()  # before it is ready, so that `stop` finds it whatever becomes of this process
    print(f"loading {name}; the log is {log}", file=sys.stderr, flush=True)
    try:
        _wait_ready(lambda: process.poll() is None, url, port)
    except BaseException:  # also Ctrl-C
        process.terminate()
        record.remove()
        raise
    print(f"{name} is served at {url}/ until `eagre stop`", file=sys.stderr, flush=True)
    process.returncode = 0  # it goes on without this process, which shall not warn of it
    return url


def _environment() -> dict[str, str]:
    """The variables of the server, without those that move it away from its port."""
    moving = ("EAGRE_UDS", "EAGRE_API_PREFIX", "EAGRE_SSL_CERTFILE", "EAGRE_SSL_KEYFILE")
    return {name: value for name, value in python_environment().items() if name not in moving}


def _wait_ready(is_alive: Callable[[], bool], url: str, port: int) -> None:
    """Returns when the server is ready; raises NoAnswer with its last line where it ends."""
    from rich.console import Console

    client = ServerClient(url)
    with Console(stderr=True).status("starting") as shown_status:
        while is_alive():
            with contextlib.suppress(NoAnswer):
                state = orjson.loads(asyncio.run(client.get("/readiness", is_ready=False)))
                if state["status"] == "ready":
                    return
                shown_status.update(one_line(state["detail"]))
            time.sleep(POLL_S)
    lines = log_file(port).read_text(encoding="utf-8", errors="replace").split("\n")
    reasons = [line.removeprefix("eagre: ") for line in lines if line.startswith("eagre: ")]
    raise NoAnswer(reasons[-1] if reasons else f"the server has ended; its log is {log_file(port)}")
