"""Batches by the official client library: every route, errors, cancelling, expiry, other keys."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from server.admission.keyring import BACKGROUND_PRIORITY
from server.api.batches.batch_requests import ENDPOINTS
from server.api.openapi.batch_answers import BatchList, BatchObject, FileList
from server.http.batches import batch_runner, batches, input_validation
from server.http.batches.line_execution import EXECUTED
from server.storage.batch_table import StoredBatch
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually, still_limits
from tests.server.http.batches.conftest import COMPLETIONS, client_of, create, ended, line, lines_of, wait_for

BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "fake", "prompt": "tide", "max_tokens": 9},
    "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "tide"}]},
    "/v1/responses": {"model": "fake", "input": "tide"},
    "/v1/embeddings": {"model": "fake", "input": "tide"},
}


async def test_every_request_is_answered_as_its_route_would(server: RunningServer, client: AsyncOpenAI) -> None:
    batch = await create(client, b"".join(line(f"r{at}") for at in range(40)), metadata={"a": "b"})
    assert (batch.status, batch.endpoint, batch.completion_window) == ("validating", COMPLETIONS, "24h")
    assert batch.expires_at == batch.created_at + 86_400
    batch = await ended(client, batch.id)
    assert (batch.status, batch.model, batch.metadata) == ("completed", "fake", {"a": "b"})
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
    assert batch.usage is not None
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert batch.error_file_id is None
    lines = await lines_of(client, batch.output_file_id)
    assert [answer["custom_id"] for answer in lines] == [f"r{at}" for at in range(40)]
    for answer in lines:
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        assert answer["response"]["body"]["choices"][0]["text"] == f"<{answer['custom_id']}>"
    assert len({answer["response"]["request_id"] for answer in lines}) == 40
    assert {options["priority"] for options in server.engine.options.values()} == {BACKGROUND_PRIORITY}
    for path, kind in (("batches", BatchList), (f"batches/{batch.id}", BatchObject), ("files", FileList)):
        kind.model_validate((await server.get(f"/v1/{path}"))[1])


@pytest.mark.parametrize("endpoint", BODIES)
async def test_each_endpoint(client: AsyncOpenAI, endpoint: str) -> None:
    body = BODIES[endpoint]
    content = line("good", body, endpoint) + line("bad", {**body, "user": 5}, endpoint)
    batch = await ended(client, (await create(client, content, endpoint)).id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    (good,), (bad,) = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
    assert good["response"]["body"]["object"] in ("text_completion", "chat.completion", "response", "list")
    assert (bad["custom_id"], bad["error"], bad["response"]["status_code"]) == ("bad", None, 400)
    assert bad["response"]["body"]["error"]["param"] == "user"
    if endpoint == "/v1/responses":
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(good["response"]["body"]["id"])


def test_the_endpoints_are_those_that_are_computed() -> None:
    assert set(ENDPOINTS) == set(EXECUTED)


@pytest.mark.parametrize("name", ["stream", "background"])
async def test_a_request_that_cannot_be_answered_whole(client: AsyncOpenAI, name: str) -> None:
    content = line("a", {"model": "fake", "input": "a", name: True}, "/v1/responses")
    batch = await ended(client, (await create(client, content, "/v1/responses")).id)
    (bad,) = await lines_of(client, batch.error_file_id)
    assert bad["response"]["body"]["error"]["param"] == name


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (line("a") + b"{", "invalid_json_line"),
        (line("a") + line("b") + line("a"), "duplicate_custom_id"),
        (line("a", url="/v1/embeddings"), "mismatched_endpoint"),
        (line("a", {"model": "gpt-4", "prompt": "a"}), "model_not_found"),
    ],
)
async def test_a_bad_file_fails_the_batch(
    server: RunningServer, client: AsyncOpenAI, content: bytes, code: str
) -> None:
    batch = await ended(client, (await create(client, content)).id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.code for error in batch.errors.data] == [code]
    assert not server.engine.submitted
    assert await server.served.store.run_read(lambda tables: tables.batches.counts()) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "param", "status"),
    [
        ({"input_file_id": "file-1"}, "input_file_id", 404),
        ({"input_file_id": None}, "input_file_id", 400),
        ({"input_file_id": "x" * 65}, "input_file_id", 400),
        ({"endpoint": "/v1/images"}, "endpoint", 400),
        ({"completion_window": "24"}, "completion_window", 400),
        ({"completion_window": "31d"}, "completion_window", 400),
        ({"completion_window": "0h"}, "completion_window", 400),
        ({"metadata": {"a": 1}}, "metadata", 400),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds", 400),
        ({"endpint": COMPLETIONS}, "endpint", 400),
    ],
)
async def test_bad_bodies(
    server: RunningServer, client: AsyncOpenAI, changes: dict[str, Any], param: str, status: int
) -> None:
    file = await client.files.create(file=("a", line("a")), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h", **changes}
    answered, answer = await server.post("/v1/batches", body)
    assert (answered, answer["error"]["param"]) == (status, param)


async def test_batches_are_listed_and_those_that_are_not_there_are_not_found(
    server: RunningServer, client: AsyncOpenAI
) -> None:
    made = [(await create(client, line("a"))).id for _ in range(3)]
    for batch_id in made:
        await ended(client, batch_id)
    assert [batch.id async for batch in client.batches.list(limit=2)] == made[::-1]
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="No batch found"):
            await call("batch_1")
    with pytest.raises(openai.ConflictError, match="has ended with the status completed"):
        await client.batches.cancel(made[0])
    assert (await server.get("/v1/batches?after=batch_1"))[0] == 400
    output = (await client.batches.retrieve(made[0])).output_file_id
    with pytest.raises(openai.BadRequestError, match="has the purpose batch_output"):
        await client.batches.create(input_file_id=str(output), endpoint=COMPLETIONS, completion_window="24h")


async def test_a_cancelled_batch_has_the_answers_until_then(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, max_batch_requests=2)
    async with client_of(server) as client:
        batch = await create(client, b"".join(line(f"r{at}") for at in range(6)))
        await eventually(lambda: len(engine.running) == 2)
        engine.step(6)
        await eventually(lambda: len(engine.submitted) == 4)
        cancelled = await client.batches.cancel(batch.id)
        assert cancelled.status in ("cancelling", "cancelled")
        batch = await ended(client, batch.id)
        assert batch.status == "cancelled"
        assert None not in (batch.cancelling_at, batch.cancelled_at)
        assert not engine.running
        answers, errors = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
        assert [answer["custom_id"] for answer in answers] == ["r0", "r1"]
        assert [(error["custom_id"], error["error"]["code"]) for error in errors] == [
            (f"r{at}", "batch_cancelled") for at in range(2, 6)
        ]
        assert (await client.batches.cancel(batch.id)).status == "cancelled"


async def test_a_batch_expires(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, max_batch_requests=1)
    runner = server.app[batches.BATCH_RUNNER]
    async with client_of(server) as client:
        batch = await create(client, line("a") + line("b"), completion_window="1h")
        await eventually(lambda: len(engine.running) == 1)
        runner.clock = lambda: batch.created_at + 3600.0
        batch = await ended(client, batch.id)
        assert batch.status == "expired"
        errors = await lines_of(client, batch.error_file_id)
        assert [error["error"]["code"] for error in errors] == ["batch_expired"] * 2
        assert not engine.running


async def test_the_file_may_be_deleted_under_a_batch(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, max_batch_requests=1)
    async with client_of(server) as client:
        batch = await create(client, b"".join(line(f"r{at}") for at in range(4)))
        await eventually(lambda: len(engine.running) == 1)
        await client.files.delete(batch.input_file_id)
        with pytest.raises(openai.NotFoundError):
            await create_again(client, batch.input_file_id)
        stepping = asyncio.create_task(step_for_ever(engine))
        batch = await ended(client, batch.id)
        stepping.cancel()
        assert len(await lines_of(client, batch.output_file_id)) == 4


async def create_again(client: AsyncOpenAI, file_id: str) -> None:
    await client.batches.create(input_file_id=file_id, endpoint=COMPLETIONS, completion_window="24h")


async def step_for_ever(engine: FakeEngineClient) -> None:
    while True:
        engine.step()
        await asyncio.sleep(0.001)


async def test_a_key_has_few_open_batches_and_none_of_another(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_OPEN", 2)
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, api_keys=("key-of-ann ann", "key-of-ben ben"))
    async with client_of(server, "key-of-ann") as ann, client_of(server, "key-of-ben") as ben:
        made = [await create(ann, line("a")) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 batches of this key have not ended"):
            await create(ann, line("a"))
        for call in (ben.batches.retrieve, ben.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(made[0].id)
        assert [batch.id async for batch in ben.batches.list()] == []
        bens = await create(ben, line("b"))
        await eventually(lambda: len(engine.running) == 3)
        assert set(engine.tenants.values()) == {"ann (batch)", "ben (batch)"}
        assert len({options["cache_salt"] for options in engine.options.values()}) == 2
        engine.step(5)
        assert (await ended(ben, bens.id)).status == "completed"
        for batch in made:
            assert (await ended(ann, batch.id)).status == "completed"


async def test_keys_take_turns_with_their_validations(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that hands in many batches at once lets another one wait for one of them alone."""
    begun, may_end = list[str](), asyncio.Event()

    async def validate(served: Any, batch: StoredBatch, **options: Any) -> Any:
        begun.append(batch.fields["metadata"]["name"])
        await may_end.wait()
        return await input_validation.validate(served, batch, **options)

    monkeypatch.setattr(batch_runner, "validate", validate)
    server = await start_server(api_keys=("key-of-ann ann", "key-of-ben ben"))
    async with client_of(server, "key-of-ann") as ann, client_of(server, "key-of-ben") as ben:
        made = [(ann, await create(ann, line("a"), metadata={"name": name})) for name in "abc"]
        made.append((ben, await create(ben, line("a"), metadata={"name": "d"})))
        may_end.set()
        for client, batch in made:
            assert (await ended(client, batch.id)).status == "completed"
    assert begun == ["a", "d", "b", "c"]


async def test_a_request_runs_beside_clients_and_no_more(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, max_batch_requests=4)
    async with client_of(server) as client:
        waiting = asyncio.create_task(server.post(COMPLETIONS, {"prompt": "a client's", "max_tokens": 100}))
        await eventually(lambda: len(engine.running) == 1)
        batch = await create(client, b"".join(line(f"r{at}", {"model": "fake", "prompt": "abc"}) for at in range(9)))
        await wait_for(client, batch.id, lambda found: found.status == "in_progress")
        await eventually(lambda: len(engine.running) == 2)
        await asyncio.sleep(0.1)
        assert len(engine.running) == 2
        assert server.served.batch_figures.num_running == 1
        engine.step(4)
        await eventually(lambda: len(engine.submitted) == 3)
        assert len(engine.running) == 2
        while not waiting.done():
            engine.step()
            await asyncio.sleep(0.001)
        await eventually(lambda: len(engine.running) == 4)
        stepping = asyncio.create_task(step_for_ever(engine))
        assert (await ended(client, batch.id)).status == "completed"
        stepping.cancel()


@pytest.mark.usefixtures(still_limits.__name__)
async def test_the_limits_of_a_key_leave_room_to_its_other_requests(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, api_keys=("key-of-ann ann - 1000 1 1000",))
    async with client_of(server, "key-of-ann") as ann:
        body = {"model": "fake", "prompt": "x" * 200, "max_tokens": 200, "ignore_eos": True}
        batch = await create(ann, b"".join(line(f"r{at}", body) for at in range(4)))
        found = await wait_for(
            ann, batch.id, lambda found: found.request_counts is not None and found.request_counts.completed >= 1
        )
        assert found.request_counts is not None
        await asyncio.sleep(0.2)
        found = await ann.batches.retrieve(batch.id)
        assert found.request_counts is not None
        assert (found.status, found.request_counts.completed, found.request_counts.failed) == ("in_progress", 1, 0)
        answer = await ann.completions.create(model="fake", prompt="x" * 200, max_tokens=200)
        assert answer.usage is not None
        await ann.batches.cancel(batch.id)
        await ended(ann, batch.id)


async def test_a_request_too_large_for_its_key_fails(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), api_keys=("key-of-ann ann - - - 100",))
    async with client_of(server, "key-of-ann") as ann:
        body = {"model": "fake", "prompt": "x" * 90, "max_tokens": 90}
        batch = await ended(ann, (await create(ann, line("a", body))).id)
        (error,) = await lines_of(ann, batch.error_file_id)
        assert error["response"]["status_code"] == 429
        assert "too large for the key" in error["response"]["body"]["error"]["message"]


async def test_a_full_queue_loses_nothing(start_server: StartServer) -> None:
    engine = FakeEngineClient(max_num_queued=1)
    server = await start_server(engine, max_batch_requests=8)
    async with client_of(server) as client:
        batch = await ended(client, (await create(client, b"".join(line(f"r{at}") for at in range(4)))).id)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 0)


async def test_the_metrics_count_batches(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, max_batch_requests=1)

    async def figures() -> dict[str, float]:
        async with server.http.get(server.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return {
            name: float(value) for name, value in (line.split() for line in lines if line.startswith("eagre_batch"))
        }

    async with client_of(server) as client:
        batch = await create(client, line("a") + line("b"))
        await eventually(lambda: len(engine.running) == 1)
        async with asyncio.timeout(PATIENCE_S):
            while (await figures())["eagre_batch_requests_running"] != 1:
                await asyncio.sleep(0.01)
        assert (await figures())["eagre_batches_open"] == 1
        stepping = asyncio.create_task(step_for_ever(engine))
        await ended(client, batch.id)
        stepping.cancel()
        assert (await figures())["eagre_batch_requests_answered"] == 2
