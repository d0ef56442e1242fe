"""POST /v1/chat/completions: from the request body to the prompt, and from deltas to chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

import orjson

from server.api.openai.call import OpenAICall
from server.api.openai.chat_deltas import NO_DELTA, NO_REASONING, ChatDelta, ChatDeltaParser
from server.api.openai.chat_request import ChatCompletionRequest, as_template_messages
from server.api.openai.chunk_writer import NULLS, ChunkWriter
from server.api.openai.logprobs import ChatLogprobs
from server.api.openai.openai_objects import encode_reason, error_object, usage_object
from server.api.route import AnswerContext, BodyRoute
from server.generation.answers import Answer
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.generation.prompt_sources import Conversation

_OBJECT = "chat.completion"


class ChatWriter(ChunkWriter):
    """Writes a chat completion, whole or as chunks."""

    chunk_object = f"{_OBJECT}.chunk"

    ends_alone = False  # whether the chunk that ends a choice has nothing else

    _echo = ""  # what each choice begins with
    _unechoed: Set[int] = frozenset()  # the choices of which it was not told yet
    _tells_prompt = True  # until its logprobs were told
    _is_first_chunk = True
    _make_parts: Callable[[], ChatDeltaParser] | None = None
    _parts: list[ChatDeltaParser]  # by choice

    def look_for_parts(self, make: Callable[[], ChatDeltaParser]) -> None:
        """Splits reasoning and tool calls from content, by a parser from `make`. Called before anything is written."""
        self._make_parts, self._parts = make, []

    def echo(self, text: str) -> None:
        """Begins each choice with this text. Called before anything is written."""
        self._echo, self._unechoed = text, frozenset(range(self._generation.num_choices))

    def to_dict(self, answers: Sequence[Answer]) -> dict[str, Any]:
        body = {
            **self._answer_head.to_dict(_OBJECT),
            "choices": [self._shape(answer) for answer in answers],
            "usage": self._usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            **NULLS,
            **self._metrics(),
            **self._timings(),
            **self._verbose(answers),
        }
        if self._logprobs is not None and self._fields.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._logprobs.shape_prompt(answers[0])
        if self._with_token_ids:
            body["prompt_token_ids"] = self._generation.prompts[0].token_ids
        return body

    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        if not self._unechoed:
            return self._encode_answer(deltas)
        echoes = [self._encode_echo(delta) for delta in deltas if delta.index in self._unechoed]
        return echoes + self._encode_answer(deltas)

    def _encode_answer(self, deltas: Sequence[Delta]) -> list[bytes]:
        if self._make_parts is None:
            return super().encode(deltas)
        if not self._parts:
            self._parts = [self._make_parts() for _ in range(self._generation.num_choices)]
        return [chunk for delta in deltas for chunk in self._encode_parts(delta, self._parts[delta.index])]

    def _encode_echo(self, delta: Delta) -> bytes:
        self._unechoed -= {delta.index}
        return self._encode_fields(_without_tokens(delta), ChatDelta("", self._echo, []), encode_reason(None))

    def _encode_parts(self, delta: Delta, parts: ChatDeltaParser) -> list[bytes]:
        """No chunk where nothing is certain yet. Tokens and the end are told with the last chunk of a delta."""
        is_last = delta.finish_reason is not None
        *before, last = parts.feed(delta.text, delta.token_ids, is_last=is_last)
        if self.ends_alone and is_last and not last.is_empty:
            before, last = [*before, last], NO_DELTA
        chunks = [self._encode_fields(_without_tokens(delta), found, encode_reason(None)) for found in before]
        if not last.is_empty or is_last or self._with_token_ids or self._logprobs is not None:
            chunks.append(self._encode_fields(delta, last, encode_reason(parts.reason(delta.finish_reason))))
        return chunks

    def _encode_fields(self, delta: Delta, found: ChatDelta, reason: bytes) -> bytes:
        fields = found.to_dict()
        if fields and delta.index in self._silent:
            self._silent.remove(delta.index)
            fields = {"role": "assistant", "content": None, **fields}
        return self._encode_chunk(delta, orjson.dumps(fields), reason)

    def _usage(self) -> dict[str, object]:
        if self._make_parts is None:
            return super()._usage()
        return usage_object(self._generation.usage, sum(parts.num_reasoning_tokens for parts in self._parts))

    def _encode(self, delta: Delta) -> bytes:
        return self._encode_chunk(delta, self._delta(delta), encode_reason(delta.finish_reason))

    def _encode_chunk(self, delta: Delta, encoded: bytes, finish_reason: bytes) -> bytes:
        return b'%b%b,"choices":[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b%b}]%b' % (
            self._head,
            self._of_prompt(delta) if self._tells_prompt else b"",
            delta.index,
            encoded,
            b"null" if self._logprobs is None else self._logprobs.encode(delta),
            finish_reason,
            self._encoded_stops(delta),
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
        """The prompt's logprobs, which come with the first tokens, and its token ids, with the first chunk."""
        encoded = b"" if self._logprobs is None else self._logprobs.encode_prompt(delta)
        self._tells_prompt = not delta.token_ids
        if self._with_token_ids and self._is_first_chunk:
            encoded += b',"prompt_token_ids":' + orjson.dumps(self._generation.prompts[0].token_ids)
        self._is_first_chunk = False
        return encoded

    def _shape(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, **NO_REASONING}
        finish_reason: str | None = answer.finish_reason
        if self._make_parts is not None:
            self._parts.append(self._make_parts())
            message |= self._parts[-1].message(answer.text, answer.token_ids)
            finish_reason = self._parts[-1].reason(answer.finish_reason)
        if self._echo:
            message["content"] = self._echo + (message["content"] or "")
        return {
            "index": answer.index,
            "message": message,
            "logprobs": None if self._logprobs is None else self._logprobs.shape(answer),
            "finish_reason": finish_reason,
            **self._stops(answer),
            "token_ids": answer.token_ids if self._with_token_ids else None,
        }


def _without_tokens(delta: Delta) -> Delta:
    """A delta of the same choice that has nothing."""
    return Delta(delta.index, "", [], None, None if delta.logprobs is None else [])


class ChatCall(OpenAICall):
    """A chat completion request."""

    writer_kind = ChatWriter
    logprobs_kind = ChatLogprobs
    id_prefix = "chatcmpl"

    def __init__(self, body: ChatCompletionRequest) -> None:
        newer = body.max_completion_tokens
        length = {} if newer is None else {"max_tokens": newer, "max_tokens_parameter": "max_completion_tokens"}
        self.conversation = Conversation(
            as_template_messages(body.messages),
            parse_special=body.parse_special is True,
            tools=body.prompt_tools,
            begins_turn=body.add_generation_prompt is not False and not body.continue_final_message,
            continues=body.continue_final_message is True,
            variables=body.template_variables if body.has_template_variables else {},
            switches=body.switches,
        )
        self._body = body
        super().__init__(
            body,
            [self.conversation],
            prompt_parameter="messages",
            strict_calls=body.strict_calls if body.offered_tools else None,
            offered_calls=body.offered_calls if body.offered_tools else None,
            declares_tools=bool(body.offered_tools),
            thinking_budget=body.thinking_token_budget,
            **length,
        )

    def rename_pictures(self, rename: Callable[[str], str]) -> None:
        """Changes the paths of pictures to those in the body of another API, which was converted to this one."""
        if self.pictures:
            self.conversation = self.conversation.with_paths(rename)
            self.request = replace(self.request, prompts=[self.conversation])

    def make_writer(self, generation: Generation, context: AnswerContext) -> ChunkWriter:
        writer = super().make_writer(generation, context)
        if isinstance(writer, ChatWriter):
            make_parts = self.parts_maker(generation, context)
            if make_parts is not None:
                writer.look_for_parts(make_parts)
            if self.echoed:
                writer.echo(self.echoed)
        return writer

    @property
    def echoed(self) -> str:
        """The text that each answer begins with, before what the model has written."""
        return self._body.echoed

    def parts_maker(self, generation: Generation, context: AnswerContext) -> Callable[[], ChatDeltaParser] | None:
        """The function that makes the parser of one choice; None where all text is content."""
        body = self._body
        parts = context.answer_format.of_request(
            may_call=body.may_call,
            must_call=body.forced_calls is not None,
            schemas={tool.function.name: tool.function.parameters for tool in body.offered_tools},
            is_parallel=body.tool_policy.is_parallel,
        )
        if parts.is_plain:
            return None
        prompt, with_reasoning = generation.prompts[0].token_ids, body.include_reasoning is not False
        num_begun, custom_names = self.request.num_prompt_output_tokens, body.custom_names
        is_of_functions = body.is_of_functions
        return lambda: ChatDeltaParser(
            parts, prompt, generation.tokenizer, num_begun=num_begun, with_reasoning=with_reasoning,
            custom_names=custom_names, is_of_functions=is_of_functions,
        )  # fmt: skip

    @classmethod
    def parse(cls, body: Any) -> ChatCall:
        return cls(ChatCompletionRequest.parse(body))


CHAT_COMPLETIONS = BodyRoute("/v1/chat/completions", ChatCall.parse, error_object)
