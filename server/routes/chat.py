"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from server.answering.choice import Delta
from server.answering.generation import Answer, Generation
from server.http.body import read_json
from server.http.middleware import REQUEST_ID
from server.http.respond import respond
from server.http.service import SERVICE
from server.routes.answer import AnswerHead
from server.routes.chunks import Chunks, encode_reason
from server.routes.logprobs import WireLogprobs, wire_logprobs
from server.wire.requests import ChatCompletionRequest

_OBJECT = "chat.completion"


class ChatChunks(Chunks):
    """Chunks of a streamed chat answer."""

    def __init__(
        self, head: AnswerHead, request: ChatCompletionRequest, generation: Generation, logprobs: WireLogprobs | None
    ) -> None:
        super().__init__(head.encode(f"{_OBJECT}.chunk"), with_usage=request.wants_usage)
        self._with_token_ids = request.return_token_ids is True
        self._logprobs = logprobs
        self._is_first_chunk = True
        self._silent = set(range(generation.num_choices))  # choices that have yet to tell their role
        self._generation = generation

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
        fields = b"" if self._logprobs is None else self._logprobs.encode_prompt(delta)
        if self._with_token_ids:
            fields += b',"prompt_token_ids":' + orjson.dumps(self._generation.prompts[0].token_ids)
        return fields


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    service = request.app[SERVICE]
    service.check_accepting()
    body = ChatCompletionRequest.parse(await read_json(request))
    async with service.generate(body) as generation:
        head = AnswerHead.make("chatcmpl", body.request_id or request[REQUEST_ID], service.model_name)
        logprobs = wire_logprobs(body, generation, service.tokenizer)
        return await respond(
            request,
            body,
            generation,
            make_chunks=lambda: ChatChunks(head, body, generation, logprobs),
            make_reply=lambda answers: {**head.to_dict(_OBJECT), **_reply(answers, body, generation, logprobs)},
            has_logprobs=logprobs is not None,
        )


def _reply(
    answers: Sequence[Answer],
    body: ChatCompletionRequest,
    generation: Generation,
    logprobs: WireLogprobs | None,
) -> dict[str, Any]:
    choices = []
    for answer in answers:
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None if logprobs is None else logprobs.shape(answer),
            "finish_reason": answer.finish_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = answer.token_ids
        choices.append(choice)
    reply: dict[str, Any] = {"choices": choices, "usage": generation.usage.to_dict()}
    if logprobs is not None and body.prompt_logprobs is not None:
        reply["prompt_logprobs"] = logprobs.shape_prompt(answers[0])
    if body.return_token_ids:
        reply["prompt_token_ids"] = generation.prompts[0].token_ids
    return reply
