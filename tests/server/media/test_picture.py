"""Pictures in the contents of messages."""

from __future__ import annotations

import pytest

from server.media.picture import (
    MAX_PICTURES,
    NOTE,
    Picture,
    as_content,
    join_contents,
    pictures_of,
    refuse_too_many,
    text_of,
    within,
    without_pictures,
)
from server.protocol.errors import ApiError

PICTURE = Picture("content[1]", "image_url", "data:image/png;base64,AA==")
SEEN = as_content(["a", PICTURE, "b"])


def test_texts_alone_are_one_text() -> None:
    assert as_content(["a", "b"]) == "a\nb"
    assert as_content([]) == ""
    assert join_contents(["a", "b"], " ") == "a b"


def test_contents_are_joined_around_their_pictures() -> None:
    joined = join_contents(["<", SEEN, ">", as_content([PICTURE])], "|")
    assert [part.get("text", "picture") for part in joined if not isinstance(part, str)] == [
        "<|a", "picture", "b|>", "picture",
    ]  # fmt: skip
    assert text_of(joined) == "<|a\nb|>"


def test_a_picture_knows_its_path_and_its_name() -> None:
    (picture,) = pictures_of([{"role": "user", "content": within(SEEN, "messages[3]")}])
    assert (picture.path, picture.name) == ("messages[3].content[1]", "messages[].content.image_url")


def test_a_model_of_text_refuses_the_pictures_of_users() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": within(SEEN, "messages[1]")}]
    with pytest.raises(ApiError) as refusal:
        without_pictures(messages, ignores=False)
    assert (refusal.value.param, refusal.value.code) == ("messages[1].content[1]", "image_not_supported")
    assert without_pictures(messages, ignores=True)[1]["content"] == f"a\n{NOTE}\nb"
    assert without_pictures(messages[:1], ignores=False) == messages[:1]


def test_pictures_of_tools_are_notes() -> None:
    (message,) = without_pictures([{"role": "tool", "content": SEEN}], ignores=False)
    assert message["content"] == f"a\n{NOTE}\nb"


def test_a_request_has_a_largest_number_of_pictures() -> None:
    refuse_too_many([PICTURE] * MAX_PICTURES)
    with pytest.raises(ApiError, match=f"{MAX_PICTURES + 1} pictures; at most {MAX_PICTURES}"):
        refuse_too_many([PICTURE] * (MAX_PICTURES + 1))
