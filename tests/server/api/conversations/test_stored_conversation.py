"""A stored conversation is lines: adding, finding and leaving out items parses none of the others."""

from __future__ import annotations

import orjson
import pytest

from server.api.conversations.stored_conversation import StoredConversation, id_of

TOLD = {"id": "conv_1", "created_at": 7, "metadata": {"topic": "sea"}}


def message(name: str, text: str = "") -> dict[str, str]:
    return {"type": "message", "id": name, "text": text}


def test_it_comes_back_as_it_was_stored() -> None:
    items = [message("a", "two\nlines"), message('q"\\{', "ü")]
    found = StoredConversation.from_bytes(StoredConversation.new(TOLD, items).to_bytes())
    assert found.api_object == {"object": "conversation", **TOLD}
    assert found.items == items
    assert [id_of(line) for line in found.lines] == ["a", 'q"\\{']
    assert StoredConversation.from_bytes(StoredConversation.new(TOLD).to_bytes()).items == []


def test_what_earlier_versions_have_stored_is_read() -> None:
    found = StoredConversation.from_bytes(orjson.dumps({**TOLD, "items": [message("a")]}))
    assert found.api_object == {"object": "conversation", **TOLD}
    assert found.items == [message("a")]
    assert StoredConversation.from_bytes(orjson.dumps({**TOLD, "items": []})).items == []


def test_items_are_found_and_left_out_by_their_whole_id() -> None:
    conversation = StoredConversation.new(TOLD, [message("ab"), message("a", "first"), message("a")])
    line = conversation.line_of("a")
    assert line is not None
    assert orjson.loads(line) == message("a", "first")
    assert conversation.line_of("b") is None
    assert conversation.line_of("\ud800") is None  # what no stored id can be
    assert conversation.without("a").items == [message("ab")]


@pytest.mark.parametrize(("max_bytes", "left"), [(10_000, "abcd"), (700, "cd"), (1, "d")])
def test_the_oldest_items_go_where_there_are_too_many_bytes(max_bytes: int, left: str) -> None:
    conversation = StoredConversation.new(TOLD, [message(name, name * 200) for name in "ab"])
    grown = conversation.with_items([message(name, name * 200) for name in "cd"], max_bytes)
    assert [item["id"] for item in grown.items] == list(left)  # the last one stays in any case


def test_an_item_that_nobody_asks_for_is_not_parsed() -> None:
    content = StoredConversation.new(TOLD, [message("a")]).to_bytes() + b'\n{"id":"b",  this is no JSON'
    conversation = StoredConversation.from_bytes(content)
    assert conversation.line_of("a") is not None
    assert len(conversation.with_items([message("c")], 1000).with_metadata({}).without("a").lines) == 2
