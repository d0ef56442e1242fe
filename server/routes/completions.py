"""POST /v1/completions."""

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
from server.wire.requests import CompletionRequest

_OBJECT = "text_completion"


class CompletionChunks(Chunks):
    """Chunks of a streamed completion."""

    def __init__(
        self, head: AnswerHead, request: CompletionRequest, generation: Generation, logprobs: WireLogprobs | None
    ) -> None:
        super().__init__(head.encode(_OBJECT), with_usage=request.wants_usage)
        self._choice = self._head + b',"choices":[{"index":'
        self._with_token_ids = request.return_token_ids is True
        self._num_choices = request.num_choices
        # Of the choices that have yet to tell their prompt's ids.
        self._prompts = dict.fromkeys(range(generation.num_choices)) if self._with_token_ids else {}
        self._generation = generation
        self._logprobs = logprobs

    def _encode(self, delta: Delta) -> bytes:
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b%b%b}]%b' % (
            self._choice,
            delta.index,
            orjson.dumps(delta.text),
            b"null" if self._logprobs is None else self._logprobs.encode(delta),
            encode_reason(delta.finish_reason),
            b"" if self._logprobs is None else self._logprobs.encode_prompt(delta),
            self._token_ids(delta) if self._with_token_ids else b"",
            self._tail,
        )

    def _token_ids(self, delta: Delta) -> bytes:
        encoded = b',"token_ids":' + orjson.dumps(delta.token_ids)
        if delta.index in self._prompts:
            del self._prompts[delta.index]
            prompt = self._generation.prompts[delta.index // self._num_choices]
            encoded += b',"prompt_token_ids":' + orjson.dumps(prompt.token_ids)
        return encoded


async def create_completion(request: web.Request) -> web.StreamResponse:
    service = request.app[SERVICE]
    service.check_accepting()
    body = CompletionRequest.parse(await read_json(request))
    async with service.generate(body) as generation:
        head = AnswerHead.make("cmpl", body.request_id or request[REQUEST_ID], service.model_name)
        logprobs = wire_logprobs(body, generation, service.tokenizer)

        def make_reply(answers: Sequence[Answer]) -> dict[str, Any]:
            choices = [_choice(answer, body, generation, logprobs) for answer in answers]
            return {**head.to_dict(_OBJECT), "choices": choices, "usage": generation.usage.to_dict()}

        return await respond(
            request,
            body,
            generation,
            make_chunks=lambda: CompletionChunks(head, body, generation, logprobs),
            make_reply=make_reply,
            has_logprobs=logprobs is not None,
        )


def _choice(
    answer: Answer, body: CompletionRequest, generation: Generation, logprobs: WireLogprobs | None
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": answer.index,
        "text": answer.text,
        "logprobs": None if logprobs is None else logprobs.shape(answer),
        "finish_reason": answer.finish_reason,
    }
    if logprobs is not None and body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = logprobs.shape_prompt(answer)
    if body.return_token_ids:
        choice["token_ids"] = answer.token_ids
        choice["prompt_token_ids"] = generation.prompts[answer.index // body.num_choices].token_ids
    return choice
