"""The ids of requests."""

from __future__ import annotations

import pytest

from tests.server.conftest import StartServer


async def _request_id(start_server: StartServer, offered: str) -> str:
    """The id in the response to a request that offers one."""
    server = await start_server()
    async with server.http.get(server.url + "/health", headers={"X-Request-Id": offered}) as response:
        return response.headers["X-Request-Id"]


@pytest.mark.parametrize("offered", ["a b", "x" * 129, "", "é"])
async def test_an_invalid_request_id_is_replaced(start_server: StartServer, offered: str) -> None:
    request_id = await _request_id(start_server, offered)
    assert request_id != offered
    assert len(request_id) == 32


async def test_a_valid_request_id_is_used(start_server: StartServer) -> None:
    offered = "A-z_0.9:" + "x" * 120
    assert await _request_id(start_server, offered) == offered
