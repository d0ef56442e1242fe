"""Requests that are drawn from the OpenAPI document: no failure of the server, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import yarl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.api.openapi.openapi import build_document
from server.api.openapi.operations import OPERATIONS, Operation
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.api.openapi.json_values import TEXTS, values
from tests.server.conftest import RunningServer, eventually, server_starter
from tests.thoroughness import IS_FULL

DOCUMENT = build_document("0")
SCHEMAS = DOCUMENT["components"]["schemas"]
ADMIN_KEY = "operators-secret"
# They stop the engine for everybody, for as long as nobody lets it go on.
STOPPING = {"/admin/pause", "/admin/sleep", "/admin/unload"}
ASKED = [
    operation
    for operation in OPERATIONS
    if operation.path not in STOPPING and not operation.is_socket and operation.path != "/engine/events"
]


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    body: bytes | None


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    """One operation's request, as the document says or nearly so."""
    operation: Operation = draw(st.sampled_from(ASKED))
    path = operation.path
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + quote(draw(TEXTS.filter(bool)), safe="") + rest.partition("}")[2]
    names = draw(st.lists(st.sampled_from(operation.query), unique=True)) if operation.query else []
    query = "&".join(f"{name}={quote(str(draw(st.one_of(TEXTS, st.integers(-1, 99)))))}" for name in names)
    body = None
    if operation.body is not None:
        body = json.dumps(draw(values(SCHEMAS[operation.body.__name__], SCHEMAS))).encode("utf-8", "surrogatepass")
    return Asked(operation.method, f"{path}?{query}" if query else path, body)


async def ask(server: RunningServer, asked: Asked) -> None:
    """Sends the request, and checks the answer."""
    url, headers = yarl.URL(server.url + asked.path, encoded=True), {"Authorization": f"Bearer {ADMIN_KEY}"}
    timeout = aiohttp.ClientTimeout(PATIENCE_S)  # whatever is asked for, it ends
    async with server.http.request(asked.method, url, data=asked.body, headers=headers, timeout=timeout) as response:
        told = await response.read()
    assert response.status < 500, (asked, told)
    assert b"internal_error" not in told, (asked, told)
    if response.status >= 400:
        error: Any = json.loads(told)["error"]
        assert error if isinstance(error, str) else error["message"], asked  # Ollama's is a sentence


@settings(max_examples=300 if IS_FULL else 25, suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=1, max_size=6))
def test_whatever_the_document_allows_is_answered(asked: list[Asked]) -> None:
    async def run() -> None:
        async with server_starter() as start:
            server = await start(FakeEngineClient(), admin_keys=(ADMIN_KEY,), max_body_bytes=1 << 16)
            for each in asked:
                await ask(server, each)
            await eventually(lambda: server.served.admission_budget.num_requests == 0)
        await eventually(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(run())
