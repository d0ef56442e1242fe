"""From a checked request to the token ids and parameters the engine takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sampling.host.params import InvalidParameter, SamplingParams
from server.answering.bad_words import bad_word_ids
from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.failures import TooManyTokens
from server.text.text_model import TextModel
from server.wire.errors import ApiError
from server.wire.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest, Prompt
from server.wire.sampling_fields import DEFAULT_BREAKERS

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

# Text above this many characters is tokenised in a worker thread: 16 KiB take about
# as long as one step of a small model, and the other streams must not wait for it.
MAX_INLINE_CHARS = 16 << 10
MAX_LISTED_TOKENS = 64 << 10  # of a prompt that is too long; a list of as many ids takes 2 ms
MESSAGE_CHARS = 32  # what a message, or a bad word, costs beside its text


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt and the parameters of each of its answers; all have passed the engine's checks."""

    token_ids: list[int]
    params: tuple[SamplingParams, ...]  # one per answer that is generated
    num_wanted: int  # of these answers; the best, where it is not all of them


async def prepare(request: GenerationRequest, text_model: TextModel, engine: EngineClient) -> list[PreparedPrompt]:
    """`prepare_here`, in a worker thread where it takes long. Raises what that raises."""
    if _takes_long(request):
        return await asyncio.to_thread(prepare_here, request, text_model, engine)
    return prepare_here(request, text_model, engine)


def prepare_here(
    request: GenerationRequest, text_model: TextModel, engine: EngineClient, base: SamplingParams | None = None
) -> list[PreparedPrompt]:
    """Tokenises and checks every prompt of `request` before any of them is submitted. In any thread.

    Args:
        base: parameters that hold where the request says nothing.

    Raises:
        ApiError: the chat template refuses the messages, or a limit is passed.
        InvalidParameter: a parameter is outside its limits.
    """
    # The parameters first: they are less work to refuse.
    params = request.sampling_params(request.limit_tokens(0, engine.model_info.max_model_len), base)
    params = _with_tokens_of_texts(
        params, request, text_model, default_breakers=DEFAULT_BREAKERS if base is None else None
    )
    params.check_token_ids(engine.model_info.vocab_size)
    try:
        token_lists = tokenize(request, text_model, engine.model_info.max_model_len)
        return [_check(token_ids, request, params, engine) for token_ids in token_lists]
    except InvalidParameter as error:
        # The engine knows only prompts; a chat client has sent messages.
        if error.param == "prompt" and isinstance(request, ChatCompletionRequest):
            raise InvalidParameter("messages", str(error)) from error
        raise


def tokenize(request: GenerationRequest, text_model: TextModel, max_model_len: int | None = None) -> list[list[int]]:
    """The token ids of every prompt of `request`, unchecked.

    Args:
        max_model_len: where given, a text that must have more tokens is refused before the work of finding them.

    Raises:
        ApiError: the model has no chat template, or it refuses the messages.
        InvalidParameter: a text is far too long.
    """
    if isinstance(request, CompletionRequest):
        return [_encode_prompt(prompt, text_model, max_model_len) for prompt in request.prompt]
    if not isinstance(request, ChatCompletionRequest):
        raise TypeError(f"no prompt in a {type(request).__name__}")
    if text_model.chat_template is None:
        raise ApiError(
            f"the model {text_model.name} has no chat template; use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    return [_encode_messages(request, text_model, text_model.chat_template, max_model_len)]


def _with_tokens_of_texts(
    params: SamplingParams,
    request: GenerationRequest,
    text_model: TextModel,
    *,
    default_breakers: Sequence[str] | None,
) -> SamplingParams:
    """`params` with what the tokenizer makes of the words and breakers of `request`.

    Args:
        default_breakers: where the request has none; None leaves those of `params`.

    Raises:
        InvalidParameter: there is too much of them.
    """
    if request.bad_words is not None:
        params = replace(params, bad_words=bad_word_ids(request.bad_words, text_model.tokenizer))
    breakers = default_breakers if request.dry_sequence_breakers is None else request.dry_sequence_breakers
    if breakers is not None and params.dry_multiplier > 0.0:
        params = replace(params, dry_breaker_ids=text_model.tokenizer.token_ids_with(breakers))
    return params


def _takes_long(request: GenerationRequest) -> bool:
    if request.dry_multiplier:
        return True  # all the vocabulary may have to be looked through
    num_chars = _num_chars(request) + sum(2 * (len(word) + MESSAGE_CHARS) for word in request.bad_words or ())
    return num_chars > MAX_INLINE_CHARS


def _num_chars(request: GenerationRequest) -> int:
    if isinstance(request, ChatCompletionRequest):
        return sum(len(message.content) + MESSAGE_CHARS for message in request.messages)
    if isinstance(request, CompletionRequest):
        return sum(len(prompt) for prompt in request.prompt if isinstance(prompt, str))
    raise TypeError(f"no prompt in a {type(request).__name__}")


def _encode_prompt(prompt: Prompt, text_model: TextModel, max_model_len: int | None) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    _refuse_hopeless(len(prompt), text_model, max_model_len)
    with _refusing_too_many(max_model_len):
        return text_model.tokenizer.encode(prompt, add_special_tokens=True, max_tokens=_num_listed(max_model_len))


def _encode_messages(
    request: ChatCompletionRequest, text_model: TextModel, template: ChatTemplate, max_model_len: int | None
) -> list[int]:
    """The template writes the control tokens itself, the first one included."""
    _refuse_hopeless(sum(len(message.content) for message in request.messages), text_model, max_model_len)
    tokenizer = text_model.tokenizer
    with _refusing_too_many(max_model_len):  # before the work of rendering
        whole = "".join([message.content for message in request.messages])
        tokenizer.refuse_far_too_long(whole, _num_listed(max_model_len))
    messages = [message.to_template() for message in request.messages]
    try:
        if request.parse_special:
            text, shielded = template.render(messages), None
        else:
            shielded = template.render_shielded(messages, tokenizer.control)
            text = shielded.plain
    except ChatTemplateError as error:
        raise ApiError(str(error), param="messages", code="invalid_messages") from error
    _refuse_hopeless(len(text), text_model, max_model_len)
    with _refusing_too_many(max_model_len):
        if shielded is None:
            return tokenizer.encode(text, add_special_tokens=False, max_tokens=_num_listed(max_model_len))
        return tokenizer.encode_shielded(shielded, max_tokens=_num_listed(max_model_len))


def _num_listed(max_model_len: int | None) -> int | None:
    """The most tokens of a prompt that are listed; some more than allowed, so that usual messages have the number."""
    return None if max_model_len is None else max(max_model_len, MAX_LISTED_TOKENS)


@contextmanager
def _refusing_too_many(max_model_len: int | None) -> Iterator[None]:
    try:
        yield
    except TooManyTokens as error:
        raise InvalidParameter(
            "prompt",
            f"the prompt has at least {error.num_tokens} tokens; "
            f"the model's context is {max_model_len} tokens, prompt and output together",
        ) from error


def _refuse_hopeless(num_chars: int, text_model: TextModel, max_model_len: int | None) -> None:
    """Refuses a text whose characters alone make it too long, however well they are tokenised."""
    fewest = num_chars // text_model.tokenizer.max_token_bytes
    if max_model_len is not None and fewest >= max_model_len:
        raise InvalidParameter(
            "prompt",
            f"the prompt has {num_chars} characters and so at least {fewest} tokens; "
            f"the model's context is {max_model_len} tokens, prompt and output together",
        )


def _check(
    token_ids: list[int], request: GenerationRequest, params: SamplingParams, engine: EngineClient
) -> PreparedPrompt:
    max_model_len = engine.model_info.max_model_len
    if len(token_ids) >= max_model_len:
        raise InvalidParameter(
            "prompt",
            f"the prompt has {len(token_ids)} tokens; the model's context is {max_model_len} tokens, "
            "prompt and output together",
        )
    max_tokens = request.limit_tokens(len(token_ids), max_model_len)
    if len(token_ids) + max_tokens > max_model_len:
        name = request.length_parameter
        raise InvalidParameter(
            name,
            f"{name} is {max_tokens} and the prompt has {len(token_ids)} tokens; "
            f"the model's context is {max_model_len} tokens, prompt and output together",
        )
    if max_tokens != params.max_tokens:
        params = replace(params, max_tokens=max_tokens)
    engine.check_prompt(token_ids, params)
    return PreparedPrompt(token_ids, request.params_of_answers(params), request.num_choices)
