"""Making a conversation fit is little work, however long the conversation is."""

from __future__ import annotations

import pytest

from server.answering.prompt_sources import Conversation
from server.routes.responses.fitting_conversation import FittingConversation
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
    conversation = FittingConversation(Conversation(messages), NUM_ANSWER_TOKENS)
    fitting = bytes(conversation.encode(model.model, MAX_MODEL_LEN)).decode()
    assert fitting.startswith(f"user:{num_turns - 3:02}")
    assert set(tokenizer.asked) == {MAX_MODEL_LEN - NUM_ANSWER_TOKENS}
    assert len(tokenizer.asked) <= 2 + num_turns.bit_length()
