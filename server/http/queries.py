"""Routes that use a model without generating text: tokenize, detokenize, count tokens, embeddings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from sampling.host.params import InvalidParameter
from server.admission.keyring import Tenant
from server.api.anthropic.message_objects import error_object
from server.api.anthropic.messages import conversation_of
from server.api.anthropic.messages_request import CountTokensRequest
from server.api.openai.chat import CHAT_COMPLETIONS, ChatCall
from server.api.openai.token_requests import DetokenizeRequest, EmbeddingsRequest, TokenizeRequest
from server.api.pooling.classify_request import ClassifyRequest
from server.api.pooling.rerank_request import RerankRequest
from server.api.pooling.score_request import ScoreRequest
from server.api.route import ErrorShape
from server.generation.prompt_sources import MAX_INLINE_CHARS, Conversation
from server.generation.prompts import MAX_SHORT_CHARS
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, HasIgnored, decode_pictures, in_memory, read_request
from server.http.pooling.embedding import embed
from server.http.pooling.reranking import rerank_as_cohere, rerank_in_either_form
from server.http.pooling.scoring import classify, score
from server.http.transport.json_body import json_response, send_whole
from server.media.picture import Picture
from server.protocol.chat_tools import offered
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.text.detokenizer import token_text_alone
from server.text.text_model import TextModel
from server.text.tokenization.native_errors import TooManyTokens

COUNT_TOKENS = "/v1/messages/count_tokens"
ERROR_SHAPES: Mapping[str, ErrorShape] = {COUNT_TOKENS: error_object}  # of routes that do not have OpenAI's

MAX_COUNTED = 1 << 18  # tokens of a text or a conversation; counting more would take a worker thread for long
MAX_INLINE_NUMBERS = 1024  # in an answer that is encoded on the asyncio thread


class AsksModel(HasIgnored, Protocol):
    """A request body with a model name."""

    @property
    def model(self) -> str | None: ...

    @classmethod
    def parse(cls, body: Any) -> Self: ...


@dataclass(frozen=True, slots=True)
class CountedConversation:
    """A parsed count_tokens request. Parsing it builds the conversation, in a worker thread if the body is large."""

    model: str | None
    ignored: Sequence[str]
    conversation: Conversation

    @property
    def model_name(self) -> str | None:
        return self.model

    @property
    def pictures(self) -> Sequence[Picture]:
        return self.conversation.pictures

    @classmethod
    def parse(cls, body: Any) -> CountedConversation:
        """Raises ApiError, ValidationError: the decoded JSON body is not a valid request."""
        query = CountTokensRequest.parse(body)
        return cls(query.model, query.ignored, conversation_of(query))


@dataclass(frozen=True, slots=True)
class CountedChat:
    """A parsed chat completion request of which only the tokens are counted."""

    model: str | None
    ignored: Sequence[str]
    conversation: Conversation

    @property
    def model_name(self) -> str | None:
        return self.model

    @property
    def pictures(self) -> Sequence[Picture]:
        return self.conversation.pictures

    @classmethod
    def parse(cls, body: Any) -> CountedChat:
        """Raises ApiError, ValidationError: the decoded JSON body is not a valid request."""
        call = ChatCall.parse(body)
        return cls(call.request.model, call.ignored, call.conversation)


Asked = TypeVar("Asked", bound=AsksModel)
T = TypeVar("T")
Answer = Callable[[Asked, ServedModel, ServedModels, Tenant], Awaitable[dict[str, Any] | list[dict[str, Any]]]]


def add_routes(app: web.Application) -> None:
    app.router.add_post("/tokenize", _make_handler(TokenizeRequest, _tokenize))
    app.router.add_post("/detokenize", _make_handler(DetokenizeRequest, _detokenize))
    app.router.add_post(COUNT_TOKENS, _make_handler(CountedConversation, _count_tokens))
    app.router.add_post(CHAT_COMPLETIONS.path + "/input_tokens", _make_handler(CountedChat, _count_tokens))
    app.router.add_post("/v1/embeddings", _make_handler(EmbeddingsRequest, embed))
    for path in ("/v1/rerank", "/rerank"):
        app.router.add_post(path, _make_handler(RerankRequest, rerank_in_either_form))
    app.router.add_post("/v2/rerank", _make_handler(RerankRequest, rerank_as_cohere))
    for path in ("/v1/score", "/score"):
        app.router.add_post(path, _make_handler(ScoreRequest, score))
    app.router.add_post("/classify", _make_handler(ClassifyRequest, classify))


def _make_handler(kind: type[Asked], answer: Answer[Asked]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        served = request.app[SERVED]
        with ExitStack() as preparing:
            query = await read_request(request, kind.parse, preparing)
            model = served.find(query.model)
            async with in_memory(served, model):
                told = await answer(query, model, served, request[TENANT])
        # Embeddings, each of many numbers, or scores.
        is_computed = isinstance(told, list) or "data" in told or "results" in told
        is_long = (
            isinstance(told, list)
            or is_computed
            or any(isinstance(value, list) and len(value) > MAX_INLINE_NUMBERS for value in told.values())
        )
        response = await served.workers.run(json_response, told) if is_long else json_response(told)
        return await send_whole(request, response, served.settings, is_owed=is_computed)

    return handle


async def _tokenize(query: TokenizeRequest, model: ServedModel, served: ServedModels, tenant: Tenant) -> dict[str, Any]:
    if query.content is not None:
        content = query.content
        return await _in_worker(served, len(content), lambda: _tokenize_content(content, query, model))
    if query.prompt is not None:
        prompt = query.prompt
        if len(prompt) <= MAX_INLINE_CHARS:
            return _tokenize_prompt(prompt, query, model)
        return await _in_worker(served, len(prompt), lambda: _tokenize_prompt(prompt, query, model))
    # The size of its messages is known when they are put together.
    conversation = await served.workers.run_long(_conversation_of, query)
    decoded = await decode_pictures(conversation.pictures, model, served)
    return await served.workers.run_long(_tokenize_conversation, conversation.with_decoded(decoded), query, model)


def _conversation_of(query: TokenizeRequest) -> Conversation:
    return Conversation(
        query.to_template(),
        tools=[tool.to_template() for tool in offered(query.tools)],
        begins_turn=query.begins_turn,
        continues=query.continue_final_message is True,
        variables=query.template_variables,
        switches=query.switches,
    )


def _tokenize_conversation(conversation: Conversation, query: TokenizeRequest, model: ServedModel) -> dict[str, Any]:
    return _tokens(_encode(conversation, model.text_model_of(query.model)), query, model)


def _tokenize_prompt(prompt: str, query: TokenizeRequest, model: ServedModel) -> dict[str, Any]:
    with_special = query.add_special_tokens is not False
    try:
        token_ids = model.text_model.tokenizer.encode(prompt, add_special_tokens=with_special, max_tokens=MAX_COUNTED)
    except TooManyTokens as error:
        raise _too_many("prompt") from error
    return _tokens(token_ids, query, model)


def _tokens(token_ids: list[int], query: TokenizeRequest, model: ServedModel) -> dict[str, Any]:
    """vLLM's answer."""
    names = [model.text_model.tokenizer.token_text(token_id) for token_id in token_ids]
    return {
        "count": len(token_ids),
        "max_model_len": model.engine.model_info.max_model_len,
        "tokens": token_ids,
        "token_strs": names if query.return_token_strs else None,
    }


def _tokenize_content(content: str, query: TokenizeRequest, model: ServedModel) -> dict[str, Any]:
    """llama.cpp's answer: ids, or with `with_pieces` objects with the text of each."""
    tokenizer = model.text_model.tokenizer
    try:
        if query.parse_special is False:
            token_ids = tokenizer.encode_parts([content], max_tokens=MAX_COUNTED)
        else:
            token_ids = tokenizer.encode(content, add_special_tokens=query.add_special is True, max_tokens=MAX_COUNTED)
    except TooManyTokens as error:
        raise _too_many("content") from error
    if not query.with_pieces:
        return {"tokens": token_ids}
    return {"tokens": [{"id": token_id, "piece": token_text_alone(tokenizer, token_id)} for token_id in token_ids]}


async def _count_tokens(
    query: CountedConversation | CountedChat, model: ServedModel, served: ServedModels, tenant: Tenant
) -> dict[str, Any]:
    conversation, text_model = query.conversation, model.text_model_of(query.model)
    conversation = conversation.with_decoded(await decode_pictures(conversation.pictures, model, served))
    token_ids = await _in_worker(served, conversation.num_chars, lambda: _encode(conversation, text_model))
    return {"input_tokens": len(token_ids)}


async def _in_worker(served: ServedModels, num_chars: int, work: Callable[[], T]) -> T:
    """Runs `work` in a worker thread, among the long calls if its texts have many characters."""
    workers = served.workers
    return await (workers.run_long if num_chars > MAX_SHORT_CHARS else workers.run)(work)


def _encode(conversation: Conversation, text_model: TextModel) -> list[int]:
    """The tokens of a conversation; raises ApiError or InvalidParameter where it has more than MAX_COUNTED."""
    try:
        return conversation.encode(text_model, MAX_COUNTED)
    except InvalidParameter as error:  # which speaks of a context of so many tokens
        raise _too_many("messages") from error


def _too_many(param: str) -> InvalidParameter:
    return InvalidParameter(param, f"{param} has more than {MAX_COUNTED} tokens, the limit of this route")


async def _detokenize(
    query: DetokenizeRequest, model: ServedModel, served: ServedModels, tenant: Tenant
) -> dict[str, Any]:
    most = model.engine.model_info.vocab_size

    def work() -> dict[str, Any]:
        for token_id in query.tokens:
            if not 0 <= token_id < most:
                raise InvalidParameter("tokens", f"tokens has the id {token_id}; it must be from 0 to {most - 1}")
        tokenizer = model.tokenizer
        decode = tokenizer.decode if query.skip_special_tokens else tokenizer.decode_with_names
        text = decode(query.tokens)
        answer = {"prompt": text, "content": text}  # llama.cpp calls it content
        if query.return_token_texts is not True:
            return answer
        return answer | {"token_texts": [token_text_alone(model.tokenizer, token_id) for token_id in query.tokens]}

    return await served.workers.run(work) if len(query.tokens) > MAX_INLINE_CHARS else work()
