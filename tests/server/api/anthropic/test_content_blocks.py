"""What a turn of Anthropic's may hold, and what of it the model is told."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.anthropic.content_blocks import MAX_BLOCKS, Text, Thinking, ToolResult, ToolUse, read_blocks, read_texts
from server.media.picture import NOTE, Picture, as_content

TEXT: dict[str, Any] = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "citations": None}


def test_a_string_is_one_text() -> None:
    assert read_blocks("a") == [Text("a")]


def test_every_kind_of_block() -> None:
    assert read_blocks(
        [
            TEXT,
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"b": 1}, "caller": {"type": "direct"}},
            {"type": "tool_use", "id": "u", "name": "g", "input": None},
            {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, TEXT]},
            {"type": "tool_result", "tool_use_id": "u", "is_error": True},
            {"type": "document", "source": {"type": "text", "data": "d"}, "title": "T"},
        ]
    ) == [
        Text("a"),
        Thinking("hm"),
        ToolUse("t", "f", {"b": 1}),
        ToolUse("u", "g", {}),
        ToolResult("t", "a\na", False),
        ToolResult("u", "", True),
        Text("T\nd"),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (5, "content is 5"),
        ([5], "content[0] is 5"),
        ([{"type": "text"}], "content[0].text is null"),
        ([TEXT, {"type": "sound", "source": {}}], 'content[1] is a block of type "sound"'),
        ([{"type": "tool_use", "id": "a", "name": "f", "input": []}], "content[0].input"),
        ([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "sound"}]}], "content[0].content[0]"),
        ([{"type": "tool_result", "tool_use_id": "a", "is_error": 1}], "content[0].is_error is 1"),
        ([TEXT] * (MAX_BLOCKS + 1), f"at most {MAX_BLOCKS}"),
    ],
)
def test_what_it_may_not_hold_is_named(content: Any, words: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the words follow
        read_blocks(content)
    assert words in str(refusal.value)


def test_texts_of_a_system() -> None:
    assert (read_texts(None, "system"), read_texts("a", "system")) == ([], ["a"])
    with pytest.raises(ValueError, match=r"system\[1\]"):
        read_texts([TEXT, {"type": "thinking", "thinking": "a"}], "system")


@pytest.mark.parametrize(
    ("block", "text", "reported"),
    [
        (
            {"type": "document", "title": "t", "source": {"type": "base64", "data": "a"}},
            "t\n[A document was left out here, because this model cannot read it.]",
            "document",
        ),
        ({"type": "document", "source": {"type": "content", "content": [TEXT]}}, TEXT["text"], None),
        ({"type": "search_result", "title": "t", "source": "s", "content": [TEXT]}, f"t\ns\n{TEXT['text']}", None),
        ({"type": "server_tool_use", "id": "a", "name": "f", "input": {"q": 1}}, '[Called f with {"q":1}]', None),
        (
            {
                "type": "web_search_tool_result",
                "tool_use_id": "a",
                "content": [{"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "x"}],
            },
            "[Result of web_search: t\nu]",
            None,
        ),
        ({"type": "compaction", "content": "c"}, "This is a summary of the conversation before:\nc", None),
    ],
)  # fmt: skip
def test_blocks_of_other_servers_say_what_they_can(block: Any, text: str, reported: str | None) -> None:
    names: list[str] = []
    assert read_blocks([block], names.append) == [Text(text)]
    assert names == ([] if reported is None else [f"messages[].content.{reported}"])


def test_references_and_damaged_images_in_results_are_text() -> None:
    content = [{"type": "tool_reference", "tool_name": "z"}, {"type": "image"}]
    (result,) = read_blocks([{"type": "tool_result", "tool_use_id": "a", "content": content}])
    assert result == ToolResult("a", f"z\n{NOTE}", False)


def test_images_are_pictures_with_the_path_of_their_block() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [TEXT, image]}
    of_user, of_url, of_tool = read_blocks([image, linked, result])
    assert of_user == Picture("content[0]", "image", "data:image/png;base64,AA==")
    assert of_url == Picture("content[1]", "image", "https://a/b.png")
    picture = Picture("content[2].content[1]", "image", "data:image/png;base64,AA==")
    assert of_tool == ToolResult("a", as_content([TEXT["text"], picture]), False)


@pytest.mark.parametrize("source", [None, {}, {"type": "file", "file_id": "f"}, {"type": "base64", "data": "AA=="}])
def test_an_image_needs_its_bytes_or_its_address(source: Any) -> None:
    with pytest.raises(ValueError, match=r"content\[1\].source"):
        read_blocks([TEXT, {"type": "image", "source": source}])


def test_blocks_that_say_nothing_are_passed_over() -> None:
    names: list[str] = []
    assert read_blocks([{"type": "container_upload", "file_id": "f"}, {"type": "compaction"}], names.append) == []
    assert names == ["messages[].content.container_upload"]
