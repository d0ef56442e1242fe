"""Conversations: what responses add to them is what the next response follows."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.conversations import Conversation

from tests.server.conftest import RunningServer
from tests.server.http.responses.conftest import ask, text_of
from tests.server.support.responses_judge import judge_response


async def test_a_conversation_grows_by_each_response(client: AsyncOpenAI, server: RunningServer) -> None:
    conversation = await client.conversations.create(metadata={"topic": "sea"})
    Conversation.model_validate(conversation.model_dump(), strict=True)
    first = judge_response(await ask(server, input="one", conversation=conversation.id))
    assert first["conversation"] == {"id": conversation.id}
    second = await ask(server, input="two", conversation={"id": conversation.id}, stream=False)
    assert text_of(second) == "user:one|assistant:user:one||user:two|"
    listed = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.role for item in listed] == ["user", "assistant", "user", "assistant"]
    # A response of a conversation may be followed by itself, as the conversation was then.
    branch = await ask(server, input="other", previous_response_id=first["id"])
    assert text_of(branch) == "user:one|assistant:user:one||user:other|"


async def test_items_are_added_fetched_and_deleted(client: AsyncOpenAI, server: RunningServer) -> None:
    conversation = await client.conversations.create(items=[{"type": "message", "role": "user", "content": "one"}])
    added = await client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "assistant", "content": "two"}]
    )
    assert [item.content[0].text for item in added.data] == ["two"]
    item = await client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id)
    assert item == added.data[0]
    await client.conversations.items.delete(item.id, conversation_id=conversation.id)
    assert text_of(await ask(server, input="x", conversation=conversation.id)) == "user:one|user:x|"
    with pytest.raises(NotFoundError):
        await client.conversations.items.delete(item.id, conversation_id=conversation.id)


async def test_metadata_is_changed(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    changed = await client.conversations.update(conversation.id, metadata={"a": "b"})
    assert changed.metadata == {"a": "b"}
    assert (await client.conversations.retrieve(conversation.id)).metadata == {"a": "b"}
    with pytest.raises(BadRequestError, match=r"metadata\.a"):
        await client.conversations.update(conversation.id, metadata={"a": 1})  # type: ignore[dict-item]


async def test_a_deleted_conversation_stays_deleted(client: AsyncOpenAI, server: RunningServer) -> None:
    conversation = await client.conversations.create()
    answer = await client.conversations.delete(conversation.id)
    assert (answer.id, answer.deleted) == (conversation.id, True)
    for asked in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(NotFoundError):
            await asked(conversation.id)
    assert (await server.post("/v1/responses", {"input": "x", "conversation": conversation.id}))[0] == 404


async def test_responses_at_the_same_time_lose_nothing(client: AsyncOpenAI, server: RunningServer) -> None:
    conversation = await client.conversations.create()
    await asyncio.gather(*(ask(server, input=str(number), conversation=conversation.id) for number in range(5)))
    listed = [item async for item in client.conversations.items.list(conversation.id)]
    assert sorted(item.content[0].text for item in listed if item.role == "user") == list("01234")
    assert len({item.id for item in listed}) == 10


async def test_items_that_cannot_be_added_are_named(server: RunningServer) -> None:
    too_many = [{"role": "user", "content": "x"}] * 21
    for items, words in ((too_many, "items"), ([{"type": 7}], "items[0].type"), (5, "list of items")):
        status, answer = await server.post("/v1/conversations", {"items": items})
        assert status == 400
        assert words in answer["error"]["message"]


async def test_a_conversation_has_no_more_than_one_body_may_have(start_saying) -> None:
    server = await start_saying(max_body_bytes=2048)
    _, conversation = await server.post("/v1/conversations", {})
    path = f"/v1/conversations/{conversation['id']}"
    for text in "abcd":
        body = {"items": [{"role": "user", "content": text * 700}]}
        assert (await server.post(f"{path}/items", body))[0] == 200
    _, listed = await server.get(f"{path}/items?order=asc")
    assert [item["content"][0]["text"][0] for item in listed["data"]] == ["c", "d"]
