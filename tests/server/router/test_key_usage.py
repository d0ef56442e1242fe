"""Limits and usage of keys where several servers stand behind one front."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.admission.keyring import KeyRing
from server.router.key_usage import Counts, charge
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import StartServer, still_limits
from tests.server.router.conftest import FRONT_KEY, RunningFront, StartFront

ANN, ADMIN = "key-of-ann", "admin-secret-3"


async def fleet(start_server: StartServer, start_front: StartFront, key: str) -> RunningFront:
    settings: dict[str, Any] = {"api_keys": (key,), "admin_keys": (ADMIN,), "front_key": FRONT_KEY}
    servers = [await start_server(FakeEngineClient(), **settings) for _ in range(2)]
    return await start_front(servers, **settings)


async def post(front: RunningFront, body: dict[str, Any]) -> tuple[int, Any, Any]:
    headers = {"Authorization": f"Bearer {ANN}"}
    async with front.http.post(f"{front.url}/v1/completions", json=body, headers=headers) as response:
        return response.status, await response.json(), response.headers


async def admin(front: RunningFront, method: str, path: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with front.http.request(method, front.url + path, headers=headers) as response:
        assert response.status == 200
        return {entry["name"]: entry for entry in (await response.json())["data"]}


async def test_a_rate_holds_for_all_replicas_together(start_server: StartServer, start_front: StartFront) -> None:
    front = await fleet(start_server, start_front, f"{ANN} ann - 3")
    answers = await asyncio.gather(*(post(front, {"prompt": letter, "max_tokens": 2}) for letter in "abcdef"))
    assert sorted(status for status, _, _ in answers)[:3] == [200] * 3
    refused = [(body, headers) for status, body, headers in answers if status == 429]
    assert len(refused) >= 2  # one may have come in the meantime
    assert {body["error"]["code"] for body, _ in refused} == {"rate_limit_exceeded"}
    assert {headers["x-ratelimit-limit-requests"] for _, headers in refused} == {"3"}
    counts = (await admin(front, "GET", "/admin/usage"))["ann"]
    assert counts["num_model_requests"] == 6 - len(refused)
    assert counts["output_tokens"] > 0
    assert counts["num_refused_requests"] >= len(refused)
    await admin(front, "POST", "/admin/usage/reset")
    counts = (await admin(front, "GET", "/admin/usage"))["ann"]
    assert (counts["num_model_requests"], counts["output_tokens"], counts["input_tokens"]) == (0, 0, 0)


async def test_tokens_of_all_replicas_count(start_server: StartServer, start_front: StartFront) -> None:
    front = await fleet(start_server, start_front, f"{ANN} ann - - - 1000")

    async def used() -> int:
        headers = {"Authorization": f"Bearer {ANN}"}
        async with front.http.get(f"{front.url}/v1/models", headers=headers) as response:
            return 1000 - int(response.headers["x-ratelimit-remaining-tokens"])

    async with asyncio.timeout(PATIENCE_S):
        number = 0
        while await used() < 80:  # about 40 tokens of each were counted by a replica, and none here
            assert (await post(front, {"prompt": f"{number}" * 20, "max_tokens": 20}))[0] == 200
            await asyncio.sleep(0.2)
            number += 1


@pytest.mark.usefixtures(still_limits.__name__)
def test_a_replica_that_was_restarted_counts_anew() -> None:
    keys, seen = KeyRing([f'{ANN} a"nn - - - 1000']), dict[str, Counts]()
    for page in (metrics(0), metrics(100), b"", metrics(150), metrics(20)):
        charge(keys, "0", page, seen)
    assert remaining(keys) == 830


@pytest.mark.usefixtures(still_limits.__name__)
def test_what_was_counted_before_the_front_came_is_not_charged() -> None:
    keys, seen = KeyRing([f'{ANN} a"nn - - - 1000']), dict[str, Counts]()
    charge(keys, "0", metrics(5_000_000), seen)
    assert remaining(keys) == 1000
    charge(keys, "0", metrics(5_000_040), seen)
    assert remaining(keys) == 960


def metrics(count: int) -> bytes:
    return b'# HELP x\neagre_key_prompt_tokens_total{key="a\\"nn"} %d.0\nother 1\n' % count


def remaining(keys: KeyRing) -> int:
    account = keys.account('a"nn')
    assert account is not None
    return int(account.headers()["x-ratelimit-remaining-tokens"])
