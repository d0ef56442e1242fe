"""What is stored is there for the key that stored it: to be fetched, followed, listed and deleted."""

from __future__ import annotations

import asyncio
import json
import threading
from io import BytesIO
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from structlog.testing import capture_logs

from server.admission.keyring import ANYBODY
from server.api.conversations.response_records import response_key
from server.http.transport.json_body import UNREAD
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, eventually
from tests.server.http.responses.conftest import TEMPLATE, ask, saying, stream, text_of
from tests.server.support.responses_judge import judge, judge_response

ANN, BOB = ({"Authorization": f"Bearer {key}"} for key in ("ann-key-1234", "bob-key-1234"))


async def test_a_response_is_fetched_as_it_was_answered(server: RunningServer) -> None:
    for response in (await ask(server, input="tide"), judge(await stream(server, input="tide"))):
        assert await server.get(f"/v1/responses/{response['id']}") == (200, response)


async def test_a_response_follows_others(server: RunningServer) -> None:
    first = await ask(server, input="one", instructions="Calm.")
    second = await ask(server, input="two", previous_response_id=first["id"])
    third = judge_response(await ask(server, input="three", previous_response_id=second["id"]))
    answers = [text_of(response) for response in (first, second)]
    assert answers[0] == "system:Calm.|user:one|"  # instructions are those of one response alone
    assert answers[1] == f"user:one|assistant:{answers[0]}|user:two|"
    assert text_of(third) == f"user:one|assistant:{answers[0]}|user:two|assistant:{answers[1]}|user:three|"
    assert third["previous_response_id"] == second["id"]
    branch = await ask(server, input="other", previous_response_id=first["id"])
    assert text_of(branch) == f"user:one|assistant:{answers[0]}|user:other|"


async def test_a_missing_link_is_named(server: RunningServer) -> None:
    first = await ask(server, input="one")
    second = await ask(server, input="two", previous_response_id=first["id"])
    async with server.http.delete(f"{server.url}/v1/responses/{first['id']}") as deleted:
        assert (deleted.status, (await deleted.json())["deleted"]) == (200, True)
    status, answer = await server.post("/v1/responses", {"input": "x", "previous_response_id": second["id"]})
    assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")
    assert first["id"] in answer["error"]["message"]
    assert (await server.get(f"/v1/responses/{first['id']}"))[0] == 404


async def test_what_is_not_to_be_stored_is_not(server: RunningServer) -> None:
    response = await ask(server, input="one", store=False)
    assert server.served.store.num_records == 0
    assert (await server.get(f"/v1/responses/{response['id']}"))[0] == 404


async def test_items_are_named_by_their_ids(server: RunningServer) -> None:
    first = await ask(server, input="one")
    item = {"type": "item_reference", "id": first["output"][0]["id"]}
    again = await ask(server, input=[item, {"role": "user", "content": "two"}])
    assert text_of(again) == "assistant:user:one||user:two|"
    status, answer = await server.post("/v1/responses", {"input": [{**item, "id": item["id"] + "0"}]})
    assert (status, answer["error"]["code"]) == (400, "item_not_found")


async def test_input_items_come_in_pages(client: AsyncOpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": str(number)} for number in range(5)]
    response = await client.responses.create(model="fake", input=items)
    listed = await client.responses.input_items.list(response.id, order="asc", limit=2)
    assert [item.content[0].text for item in listed.data] == ["0", "1"]
    assert [item.content[0].text async for item in listed] == list("01234")
    assert [item.content[0].text async for item in client.responses.input_items.list(response.id)] == list("43210")
    for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "none"}):
        with pytest.raises(BadRequestError, match=next(iter(query))):
            await client.responses.input_items.list(response.id, extra_query=query)


async def test_no_key_meets_the_responses_of_another(start_saying) -> None:
    server = await start_saying(api_keys=("ann-key-1234", "bob-key-1234"))
    url = server.url + "/v1/responses"
    async with server.http.post(url, json={"input": "secret"}, headers=ANN) as answer:
        response = await answer.json()
    conversations = server.url + "/v1/conversations"
    async with server.http.post(conversations, json={}, headers=ANN) as answer:
        conversation = await answer.json()
    item = {"type": "item_reference", "id": response["output"][0]["id"]}
    for body in ({"previous_response_id": response["id"]}, {"input": [item]}, {"conversation": conversation["id"]}):
        async with server.http.post(url, json={"input": "x", **body}, headers=BOB) as answer:
            assert answer.status in (400, 404)
            assert "not found" in (await answer.json())["error"]["message"]
    places = [f"{url}/{response['id']}", f"{url}/{response['id']}/input_items", f"{conversations}/{conversation['id']}"]
    for place in places:
        async with server.http.get(place, headers=BOB) as answer:
            assert answer.status == 404
    for place in (places[0], places[2]):
        async with server.http.delete(place, headers=BOB) as answer:
            assert answer.status == 404
    async with server.http.post(places[0] + "/cancel", headers=BOB) as answer:
        assert answer.status == 404
    for place in places:
        async with server.http.get(place, headers=ANN) as answer:
            assert answer.status == 200


async def test_a_response_that_does_not_fit_is_answered_all_the_same(start_saying) -> None:
    server = await start_saying("a" * 300, store_bytes=1 << 20)
    body = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 20}
    tools = [{"type": "function", "name": "f", "parameters": {"const": "y" * 900_000}}]
    response = await ask(server, **body, tools=tools, tool_choice="none")
    assert (response["status"], response["store"]) == ("completed", False)
    assert (await server.get(f"/v1/responses/{response['id']}"))[0] == 404


async def test_what_cannot_be_stored_is_refused_where_nothing_else_was_asked_for(start_saying) -> None:
    server = await start_saying("yes", store_bytes=1 << 20)
    large = {"role": "user", "content": "y" * 1_100_000}
    for path, body in (
        ("/v1/conversations", {"items": [large]}),
        ("/v1/responses", {"input": "x", "background": True, "metadata": {}, "tools": [
            {"type": "function", "name": "f", "parameters": {"const": "y" * 1_100_000}}], "tool_choice": "none"}),
    ):  # fmt: skip
        async with server.http.post(server.url + path, data=BytesIO(json.dumps(body).encode())) as refusal:
            status, answer = refusal.status, await refusal.json()
        assert (status, answer["error"]["code"]) == (413, "record_too_large")


async def test_a_store_that_fails_is_told(server: RunningServer) -> None:
    await server.served.store.close()
    for path, body in (("/v1/conversations", {}), ("/v1/responses", {"input": "x", "background": True})):
        status, answer = await server.post(path, body)
        assert (status, answer["error"]["code"]) == (503, "store_failed")
    response = await ask(server, input="x")
    assert (response["status"], response["store"]) == ("completed", False)


@pytest.mark.parametrize("wishes", [{}, {"store": True}, {"conversation": True}, {"background": True}], ids=str)
async def test_a_response_whose_store_breaks_meanwhile_says_that_it_is_not_stored(
    start_server, tmp_path, wishes
) -> None:
    path, engine = tmp_path / "store.db", FakeEngineClient(is_manual=True)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE), store=str(path))
    body = {"input": "tide", "stream": True, **wishes}
    if "conversation" in wishes:
        body["conversation"] = (await server.post("/v1/conversations", {}))[1]["id"]
    reading = asyncio.create_task(stream(server, **body))
    await eventually(lambda: len(engine.running) == 1)
    path.rename(tmp_path / "moved.db")
    engine.step(100)
    events = await reading
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert (events[-1]["type"], last["status"], text_of(last)) == ("response.completed", "completed", "user:tide|")
    assert (last["store"], last["conversation"]) == (False, None)
    assert events[0]["response"]["store"] is True


async def test_a_full_store_forgets_what_was_used_the_longest_ago(start_saying) -> None:
    server = await start_saying("yes", store_records=2)
    ids = [(await ask(server, input="x"))["id"] for _ in range(3)]
    assert [(await server.get(f"/v1/responses/{known}"))[0] for known in ids] == [404, 200, 200]


async def test_a_long_conversation_is_cut_where_that_is_asked_for(start_server) -> None:
    engine = FakeEngineClient(respond=lambda *_: list(b"yes"), max_model_len=200)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    items = [{"role": "system", "content": "S"}]
    items += [{"role": "user", "content": f"{number}" + "x" * 30} for number in range(10)]
    status, answer = await server.post("/v1/responses", {"input": items, "max_output_tokens": 3})
    assert (status, answer["error"]["param"]) == (400, "input")
    response = await ask(server, input=items, max_output_tokens=3, truncation="auto")
    prompt = bytes(engine.submitted[-1].prompt_token_ids).decode()
    assert prompt.startswith("system:S|user:")
    assert prompt.endswith(f"|user:9{'x' * 30}|")
    assert 160 < len(prompt) <= 197
    assert response["truncation"] == "auto"
    status, answer = await server.post("/v1/responses", {"input": "x" * 300, "truncation": "auto"})
    assert (status, answer["error"]["param"]) == (400, "input")


async def test_the_librarys_errors(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError, match="not found"):
        await client.responses.retrieve("resp_none")
    with pytest.raises(NotFoundError):
        await client.responses.delete("resp_none")
    response = await client.responses.create(model="fake", input="x")
    with pytest.raises(BadRequestError, match="background"):
        await client.responses.cancel(response.id)
    with pytest.raises(BadRequestError, match="not kept"):
        await client.responses.retrieve(response.id, stream=True)
    await client.responses.delete(response.id)


async def test_a_large_answer_is_sent_unless_too_many_are_unread(start_server) -> None:
    engine = FakeEngineClient(respond=saying("tide" * 20_000), max_model_len=100_000)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE), max_preparing_bytes=1 << 20)
    response, unread = await ask(server, input="x"), server.app[UNREAD]
    path = f"/v1/responses/{response['id']}"
    assert await server.get(path) == (200, response)
    await eventually(lambda: unread.total == 0)
    assert unread.limit == 1 << 20
    unread.take("", 1 << 20)
    status, answer = await server.get(path)
    assert (status, answer["error"]["code"]) == (429, "too_much_unread")
    assert (await server.get(path + "/input_items"))[0] == 200
    assert (await server.post("/v1/responses", {"input": "x"}))[0] == 200  # the engine has computed it
    assert (await server.post("/v1/completions", {"prompt": "x"}))[0] == 200
    unread.give_back("", 1 << 20)
    assert (await server.get(path))[0] == 200


async def test_what_is_stored_does_not_wait_behind_large_bodies(server: RunningServer) -> None:
    response = await ask(server, input="tide")
    may_go = threading.Event()
    bodies = asyncio.create_task(server.served.workers.run_large(may_go.wait, 2 * PATIENCE_S))
    async with asyncio.timeout(PATIENCE_S):
        assert await server.get(f"/v1/responses/{response['id']}") == (200, response)
        assert (await server.get(f"/v1/responses/{response['id']}/input_items"))[0] == 200
        _, conversation = await server.post("/v1/conversations", {})
        path = f"/v1/conversations/{conversation['id']}/items"
        assert (await server.post(path, {"items": [{"role": "user", "content": "ebb"}]}))[0] == 200
        assert len((await server.get(path))[1]["data"]) == 1
    may_go.set()
    await bodies


async def test_what_came_before_counts_as_if_it_was_sent(start_saying) -> None:
    server = await start_saying("yes", max_preparing_bytes=1024)
    first = await ask(server, input="x" * 170)
    first = await ask(server, input="x" * 170, previous_response_id=first["id"])
    preparation = server.served.admission_budget
    with preparation.hold(1):
        status, answer = await server.post("/v1/responses", {"input": "y", "previous_response_id": first["id"]})
        assert (status, answer["error"]["code"]) == (429, "too_much_in_preparation")
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        assert (await server.post("/v1/responses", {"input": [reference]}))[0] == 200
    assert text_of(await ask(server, input="y", previous_response_id=first["id"])) == "yes"  # alone it is let in
    assert (preparation.num_bytes, preparation.num_requests) == (0, 0)


async def test_what_references_name_together_is_bounded(start_saying) -> None:
    server = await start_saying("\1" * 150, max_body_bytes=1024)
    _, first = await server.post("/v1/responses", {"input": "tide"})
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    for num_references, status in ((2, 200), (5, 400)):  # what comes before a request has four times its bytes at most
        got, answer = await server.post("/v1/responses", {"input": [reference] * num_references})
        assert got == status
    assert answer["error"]["message"] == "the items that input names have more than 4096 bytes together"
    assert (answer["error"]["param"], answer["error"]["code"]) == ("input", "history_too_long")


async def test_a_record_is_not_parsed_to_learn_that_it_exists(server: RunningServer) -> None:
    await server.served.store.put_made(response_key(ANYBODY.owner, "resp_a"), lambda: b"never parsed")
    status, answer = await server.get("/v1/responses/resp_a?stream=true")
    assert (status, answer["error"]["code"]) == (400, "events_not_kept")
    assert (await server.get("/v1/responses/resp_b?stream=true"))[0] == 404


async def test_a_store_whose_file_is_gone_is_told(start_server, tmp_path) -> None:
    """To those who want something to be stored, to the readiness, to the metrics, and once a minute to the log."""
    path = tmp_path / "store.db"
    server = await start_server(store=str(path))
    assert (await ask(server, input="x", store=True))["status"] == "completed"
    path.rename(tmp_path / "moved.db")
    with capture_logs() as log_lines:
        for _ in range(3):
            for route, body in (("/v1/responses", {"input": "x", "store": True}), ("/v1/conversations", {})):
                status, answer = await server.post(route, body)
                assert (status, answer["error"]["code"]) == (503, "store_failed")
                assert str(tmp_path) not in str(answer)
            assert (await ask(server, input="x"))["status"] == "completed"  # the client has said nothing about it
            assert (await ask(server, input="x", store=False))["status"] == "completed"
    status, readiness = await server.get("/readiness")
    assert (status, readiness["detail"].endswith("; the store cannot be used")) == (200, True)
    assert [line["event"] for line in log_lines if "stor" in line["event"]] == ["store_failed"]
    (tmp_path / "moved.db").rename(path)
    response = await ask(server, input="x", store=True)
    assert (await server.get(f"/v1/responses/{response['id']}"))[0] == 200
    assert not (await server.get("/readiness"))[1]["detail"].endswith("used")
