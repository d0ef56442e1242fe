"""POST /v1/chat/completions."""

from __future__ import annotations

import orjson
from aiohttp import web

from server import sse
from server.answer import AnswerHead, note_progress
from server.body import json_response, read_json
from server.choice import Delta
from server.chunks import Chunks, encode_reason
from server.generation import Generation
from server.middleware import REQUEST_ID
from server.requests import ChatCompletionRequest
from server.service import SERVICE


class ChatChunks(Chunks):
    """Chunks of a streamed chat answer."""

    def __init__(self, head: AnswerHead, request: ChatCompletionRequest, generation: Generation) -> None:
        super().__init__(head.encode("chat.completion.chunk"), with_usage=request.wants_usage)
        self._with_token_ids = request.return_token_ids is True
        self._is_first_chunk = True
        self._silent = set(range(generation.num_choices))  # choices that have yet to tell their role
        self._generation = generation

    def _encode(self, delta: Delta) -> bytes:
        return b'%b%b,"choices":[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b%b}]%b' % (
            self._head,
            self._prompt_token_ids() if self._with_token_ids else b"",
            delta.index,
            self._delta(delta),
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

    def _prompt_token_ids(self) -> bytes:
        if not self._is_first_chunk:
            return b""
        self._is_first_chunk = False
        return b',"prompt_token_ids":' + orjson.dumps(self._generation.prompts[0].token_ids)


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    service = request.app[SERVICE]
    service.check_accepting()
    body = ChatCompletionRequest.parse(await read_json(request))
    async with service.generate(body) as generation:
        head = AnswerHead.make("chatcmpl", body.request_id or request[REQUEST_ID], service.model_name)
        try:
            if body.stream:
                return await sse.respond(
                    request,
                    generation,
                    ChatChunks(head, body, generation),
                    include_usage=body.wants_usage,
                    settings=service.settings,
                )
            choices = []
            for answer in await generation.collect():
                choice = {
                    "index": answer.index,
                    "message": {"role": "assistant", "content": answer.text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": answer.finish_reason,
                }
                if body.return_token_ids:
                    choice["token_ids"] = answer.token_ids
                choices.append(choice)
            reply = {**head.to_dict("chat.completion"), "choices": choices, "usage": generation.usage.to_dict()}
            if body.return_token_ids:
                reply["prompt_token_ids"] = generation.prompts[0].token_ids
            return json_response(reply)
        finally:
            note_progress(generation)
