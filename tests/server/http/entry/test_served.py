"""What a body asks for, taken in."""

from __future__ import annotations

import asyncio
import threading

from tests.patience import PATIENCE_S
from tests.server.conftest import StartServer, eventually

ALICE, BOB = "alice-secret-1", "bob-secret-22"


async def test_a_tenant_with_many_large_bodies_holds_no_others_body_up(start_server: StartServer) -> None:
    server = await start_server(api_keys=(f"{ALICE} alice", f"{BOB} bob"))
    may_go = threading.Event()
    holding = asyncio.create_task(server.served.workers.run_large(may_go.wait, PATIENCE_S))

    async def ask(key: str, prompt: str) -> int:
        body = b'{"prompt":"%b"%b}' % (prompt.encode(), b" " * (100 << 10))
        headers = {"Authorization": f"Bearer {key}"}
        async with server.http.post(server.url + "/v1/completions", data=body, headers=headers) as response:
            return response.status

    asking = []
    for key, prompt in ((ALICE, "a1"), (ALICE, "a2"), (ALICE, "a3"), (BOB, "b1")):
        asking.append(asyncio.create_task(ask(key, prompt)))
        await eventually(lambda: server.served.admission_budget.num_requests == len(asking))
    may_go.set()
    assert await asyncio.gather(*asking, holding) == [200, 200, 200, 200, True]
    order = [bytes(submitted.prompt_token_ids).decode() for submitted in server.engine.submitted]
    assert order == ["a1", "b1", "a2", "a3"]
