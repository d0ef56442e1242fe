"""Making a conversation fit is little work, however long the conversation is."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.responses.truncation import TruncatedConversation
from server.generation.prompt_sources import Conversation
from server.protocol.errors import ApiError
from tests.fakes.text_model import FakeTextModel, FakeTokenizer

MAX_MODEL_LEN, NUM_ANSWER_TOKENS = 200, 20


class CountingTokenizer(FakeTokenizer):
    """Counts the most tokens that each text may have."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None) -> list[int]:
        self.asked.append(max_tokens)
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)


@pytest.mark.parametrize("num_turns", [4, 64])
def test_no_more_tokens_are_made_than_fit(num_turns: int) -> None:
    model, tokenizer = FakeTextModel(), CountingTokenizer()
    model.tokenizer = tokenizer
    messages = [{"role": "user", "content": f"{number:02}" + "x" * 40} for number in range(num_turns)]
    conversation = TruncatedConversation(Conversation(messages), NUM_ANSWER_TOKENS)
    fitting = bytes(conversation.encode(model.model, MAX_MODEL_LEN)).decode()
    assert fitting.startswith(f"user:{num_turns - 3:02}")
    assert set(tokenizer.asked) == {MAX_MODEL_LEN - NUM_ANSWER_TOKENS}
    assert len(tokenizer.asked) <= 2 + num_turns.bit_length()


class Tool(dict[str, Any]):
    """Counts how often the values in it are walked over."""

    num_walks = 0

    def values(self) -> Any:
        self.num_walks += 1
        return super().values()


def test_what_stays_the_same_is_searched_for_deep_nesting_once() -> None:
    tool = Tool(name="f")
    messages = [{"role": "user", "content": f"{number:02}" + "x" * 40} for number in range(64)]
    TruncatedConversation(Conversation(messages, tools=[tool]), NUM_ANSWER_TOKENS).encode(
        FakeTextModel().model, MAX_MODEL_LEN
    )
    assert tool.num_walks == 1


def test_deep_nesting_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    said = [{"role": "user", "content": "a"}]
    with pytest.raises(ApiError, match="nested too deeply"):
        TruncatedConversation(Conversation(said, tools=[{"deep": deep}]), NUM_ANSWER_TOKENS).encode(
            FakeTextModel().model, MAX_MODEL_LEN
        )
