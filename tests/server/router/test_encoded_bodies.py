"""A front decodes bodies as its servers do: within the limit, and only where they are wanted."""

from __future__ import annotations

import gzip
import zlib

import orjson
import pytest

from tests.server.conftest import StartServer
from tests.server.router.conftest import StartFront

KEY = "client-key-1"
BODY = orjson.dumps({"prompt": "a", "max_tokens": 2})


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(BODY, mtime=0), "gzip", 200),
        (zlib.compress(BODY), "deflate", 200),
        (gzip.compress(bytes(16 << 20), mtime=0), "gzip", 413),
        (BODY, "gzip", 400),
        (BODY, "br", 415),
    ],
)
async def test_an_encoded_body(
    start_server: StartServer, start_front: StartFront, body: bytes, encoding: str, status: int
) -> None:
    front = await start_front([await start_server()], max_body_bytes=1 << 16)
    headers = {"Content-Encoding": encoding}
    async with front.http.post(front.url + "/v1/completions", data=body, headers=headers) as response:
        assert response.status == status


async def test_a_body_without_a_key_is_not_decoded(
    start_server: StartServer, start_front: StartFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await start_front([await start_server(api_keys=(KEY,))], api_keys=(KEY,))
    decoders: list[object] = []
    monkeypatch.setattr(zlib, "decompressobj", lambda *options: decoders.append(options))
    headers = {"Content-Encoding": "gzip"}
    bomb = gzip.compress(bytes(1 << 20), mtime=0)
    for path, status in (("/v1/completions", 401), ("/v1/none", 401), ("/liveness", 405)):
        async with front.http.post(front.url + path, data=bomb, headers=headers) as response:
            assert response.status == status
    assert decoders == []
