"""Every attack that needs no real time, on the whole server over the fake engine: no answer but those asked for."""

from __future__ import annotations

import asyncio
import random

import aiohttp
import pytest

from benchmarks.chaos.attackers import ATTACKS
from benchmarks.chaos.attacks.operators import FRIEND
from benchmarks.chaos.attacks.random_bytes import fuzz
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.target import ADMIN_KEY, KEY, MAX_BODY_BYTES, Target
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually, server_starter

# They sleep for seconds, or ask for what the fake engine does not have.
LEFT_OUT = {
    "reconnecting crowd",
    "slow loris",
    "stalled reader",
    "frozen client",
    "queries",
    "deadline",
    "hard grammars",
}


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # the client's
async def test_no_attack_gets_an_answer_that_it_did_not_ask_for() -> None:
    async with server_starter() as start:
        server = await start(
            FakeEngineClient(max_model_len=1 << 14),
            api_keys=(f"{KEY} everybody",), max_body_bytes=MAX_BODY_BYTES, store_bytes=16 << 20, resume_grace=0.2,
            resume_max_bytes=4 << 20, resume_max_streams=64, admin_keys=(ADMIN_KEY,), allowed_origins=(FRIEND,),
        )  # fmt: skip
        headers, connector = {"Authorization": f"Bearer {KEY}"}, aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            target = Target(server.url, session, random.Random(11), Ledger())
            attacks = [attack for name, attack in ATTACKS.items() if name not in LEFT_OUT]
            async with asyncio.timeout(PATIENCE_S):
                outcomes = await asyncio.gather(*(attack(target) for attack in attacks), return_exceptions=True)
        assert [error for error in outcomes if error and not isinstance(error, (aiohttp.ClientError, OSError))] == []
        assert target.ledger.failures == []
        assert len(target.ledger.outcomes) > len(attacks) / 2
        await server.assert_all_streams_ended()
        await eventually(lambda: server.served.streams.num_streams == 0)
        assert (server.served.admission_budget.num_bytes, server.served.admission_budget.num_requests) == (0, 0)


async def test_random_bytes_cause_no_internal_error() -> None:
    async with server_starter() as start:
        server = await start(FakeEngineClient(), api_keys=(f"{KEY} everybody",), max_body_bytes=MAX_BODY_BYTES)
        async with aiohttp.ClientSession() as session:
            target = Target(server.url, session, random.Random(12), Ledger())
            await asyncio.gather(*(fuzz(target) for _ in range(150)))
        assert target.ledger.failures == []
        assert {"400", "401", "404"} <= target.ledger.outcomes["fuzz"].keys()
        await server.assert_all_streams_ended()
