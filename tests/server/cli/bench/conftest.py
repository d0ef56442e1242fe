"""A server with known answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.stub_server import StubServer


@pytest.fixture
async def stub() -> AsyncIterator[StubServer]:
    stub = StubServer()
    async with stub.server:
        yield stub
