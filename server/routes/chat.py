"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from server.answering.choice import Delta
from server.answering.generation import Answer, Generation
from server.answering.prompt_sources import Conversation
from server.routes.chat_logprobs import ChatLogprobs
from server.routes.chunks import Chunks
from server.routes.framing import Framing
from server.routes.logprobs import WireLogprobs
from server.routes.openai_call import OpenAICall
from server.routes.openai_shapes import AnswerHead, encode_reason, shape_error, shape_usage
from server.routes.route import BodyRoute
from server.wire.chat_request import ChatCompletionRequest
from server.wire.generation_fields import GenerationFields

_OBJECT = "chat.completion"


class ChatChunks(Chunks):
    """Writes the answer to a conversation."""

    chunk_object = f"{_OBJECT}.chunk"

    def __init__(
        self, head: AnswerHead, fields: GenerationFields, generation: Generation, logprobs: WireLogprobs | None,
        framing: Framing,
    ) -> None:  # fmt: skip
        super().__init__(head, fields, generation, logprobs, framing)
        self._is_first_chunk = True
        self._silent = set(range(generation.num_choices))  # the choices that have yet to tell their role

    def to_dict(self, answers: Sequence[Answer]) -> dict[str, Any]:
        body = {
            **self._answer_head.to_dict(_OBJECT),
            "choices": [self._shape(answer) for answer in answers],
            "usage": shape_usage(self._generation.usage),
            **self._metrics(),
        }
        if self._logprobs is not None and self._fields.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._logprobs.shape_prompt(answers[0])
        if self._with_token_ids:
            body["prompt_token_ids"] = self._generation.prompts[0].token_ids
        return body

    def _encode(self, delta: Delta) -> bytes:
        return b'%b%b,"choices":[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}]%b' % (
            self._head,
            self._of_prompt(delta) if self._is_first_chunk else b"",
            delta.index,
            self._delta(delta),
            b"null" if self._logprobs is None else self._logprobs.encode(delta),
            encode_reason(delta.finish_reason),
            b',"token_ids":' + orjson.dumps(delta.token_ids) if self._with_token_ids else b"",
            self._tail,
        )

    def _delta(self, delta: Delta) -> bytes:
        if not delta.text:
            return b"{}"
        if delta.index not in self._silent:
            return b'{"content":%b}' % orjson.dumps(delta.text)
        self._silent.remove(delta.index)
        return b'{"role":"assistant","content":%b}' % orjson.dumps(delta.text)

    def _of_prompt(self, delta: Delta) -> bytes:
        """What the first chunk tells of the prompt."""
        self._is_first_chunk = False
        encoded = b"" if self._logprobs is None else self._logprobs.encode_prompt(delta)
        if self._with_token_ids:
            encoded += b',"prompt_token_ids":' + orjson.dumps(self._generation.prompts[0].token_ids)
        return encoded

    def _shape(self, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None if self._logprobs is None else self._logprobs.shape(answer),
            "finish_reason": answer.finish_reason,
        }
        if self._with_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice


class ChatCall(OpenAICall):
    """A conversation, which the assistant's next message continues."""

    writer_kind = ChatChunks
    logprobs_kind = ChatLogprobs
    id_prefix = "chatcmpl"

    def __init__(self, body: ChatCompletionRequest) -> None:
        newer = body.max_completion_tokens
        length = {} if newer is None else {"max_tokens": newer, "max_tokens_parameter": "max_completion_tokens"}
        conversation = Conversation(
            [message.to_template() for message in body.messages], parse_special=body.parse_special is True
        )
        super().__init__(body, [conversation], prompt_parameter="messages", **length)

    @classmethod
    def parse(cls, body: Any) -> ChatCall:
        """
        Raises:
            ApiError, ValidationError: the decoded JSON body is not a valid request.
        """
        return cls(ChatCompletionRequest.parse(body))


CHAT_COMPLETIONS = BodyRoute("/v1/chat/completions", ChatCall.parse, shape_error)
