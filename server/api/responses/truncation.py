"""Truncates a conversation to the model's context, for `truncation: "auto"`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from sampling.host.params import InvalidParameter
from server.generation.prompt_sources import Conversation
from server.media.decoded_picture import DecodedPicture
from server.media.picture import Picture
from server.text.text_model import TextModel

ANSWER_SHARE = 4  # where the request says nothing, this part of the context is left for the answer
MAX_ANSWER_ROOM = 1024  # tokens


class TruncatedConversation(NamedTuple):
    """Drops the oldest turns of a conversation until its prompt and an answer have room.

    A turn begins with a message of the user. Where even the last turn alone is too long, the prompt is rejected.
    """

    conversation: Conversation
    num_answer_tokens: int | None  # that the answer may have

    @property
    def num_chars(self) -> int:
        return self.conversation.num_chars

    @property
    def pictures(self) -> Sequence[Picture]:
        return self.conversation.pictures

    @property
    def decoded(self) -> Sequence[DecodedPicture]:
        return self.conversation.decoded

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        return self._replace(conversation=self.conversation.with_decoded(decoded))

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self.conversation.tools

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        if max_model_len is None:
            return self.conversation.encode(text_model, is_brief=is_brief)
        self.conversation.refuse_deep()
        room = self.num_answer_tokens or min(max_model_len // ANSWER_SHARE, MAX_ANSWER_ROOM)
        most = max(max_model_len - room, 1)
        messages = self.conversation.messages
        num_kept = int(bool(messages) and messages[0]["role"] == "system")  # what the system says stays
        starts = [at for at, message in enumerate(messages) if message["role"] == "user" and at > num_kept]
        token_ids = self._encode(messages, text_model, max_model_len, most, is_brief=is_brief)
        if token_ids is not None:
            return token_ids
        fitting: list[int] | None = None
        low, high = 0, len(starts)  # turns from `high` on are known to fit
        while low < high:
            middle = (low + high) // 2
            kept = [*messages[:num_kept], *messages[starts[middle] :]]
            token_ids = self._encode(kept, text_model, max_model_len, most, is_brief=is_brief)
            if token_ids is not None:
                fitting, high = token_ids, middle
            else:
                low = middle + 1
        if fitting is None:  # the last turn alone is judged as any other prompt
            last = messages[starts[-1] :] if starts else messages[num_kept:]
            return self._shortened([*messages[:num_kept], *last]).encode_checked(
                text_model, max_model_len, is_brief=is_brief
            )
        return fitting

    def _encode(
        self, messages: Sequence[Any], text_model: TextModel, max_model_len: int, most: int, *, is_brief: bool
    ) -> list[int] | None:
        """None where the prompt has more than `most` tokens."""
        try:
            return self._shortened(messages).encode_checked(text_model, max_model_len, most, is_brief=is_brief)
        except InvalidParameter:
            return None

    def _shortened(self, messages: Sequence[Any]) -> Conversation:
        return self.conversation._replace(messages=messages)
