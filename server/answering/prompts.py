"""From a request to the token ids and parameters that the engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sampling.host.grammar import GrammarError
from sampling.host.params import InvalidParameter, SamplingParams
from server.answering.bad_words import bad_word_ids
from server.answering.generation_request import GenerationRequest
from server.doors.workers import Workers
from server.grammar.compiled_grammar import CompiledGrammar
from server.text.text_model import TextModel
from server.wire.sampling_fields import DEFAULT_BREAKERS

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

# Text above this many characters is tokenised in a worker thread: 16 KiB take about
# as long as one step of a small model, and the other streams must not wait for it.
MAX_INLINE_CHARS = 16 << 10
WORD_CHARS = 32  # what a bad word costs beside its text, in characters


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt and the parameters of each of its answers. All have passed the engine's checks."""

    token_ids: list[int]
    params: tuple[SamplingParams, ...]  # one for each answer that is generated
    num_wanted: int  # how many of these answers are wanted; the best, where that is not all of them
    num_output_tokens: int = 0  # tokens at its end that are the answer so far

    @property
    def output_token_ids(self) -> list[int]:
        """The answer so far, where it is part of the prompt."""
        return self.token_ids[len(self.token_ids) - self.num_output_tokens :]


async def prepare(
    request: GenerationRequest, text_model: TextModel, engine: EngineClient, workers: Workers
) -> list[PreparedPrompt]:
    """`prepare_here`, in a worker thread where it takes long. Raises what that raises."""
    if _takes_long(request):
        return await workers.run(prepare_here, request, text_model, engine)
    return prepare_here(request, text_model, engine)


def prepare_here(
    request: GenerationRequest, text_model: TextModel, engine: EngineClient, base: SamplingParams | None = None
) -> list[PreparedPrompt]:
    """Tokenises and checks every prompt of `request` before any of them is submitted. May run in any thread.

    Args:
        base: parameters that hold where the request says nothing; None: those that the model's makers recommend.

    Raises:
        ApiError: the chat template refuses the messages.
        InvalidParameter: a parameter is outside its limits, or a prompt is too long.
    """
    max_model_len = engine.model_info.max_model_len
    # The parameters first: they are less work to refuse.
    recommended = SamplingParams(**text_model.sampling_defaults) if base is None else base
    params = request.sampling_params(request.limit_tokens(max_model_len), recommended)
    params = _with_tokens_of_texts(
        params, request, text_model, default_breakers=DEFAULT_BREAKERS if base is None else None
    )
    params.check_token_ids(engine.model_info.vocab_size)
    try:
        token_lists = [prompt.encode(text_model, max_model_len) for prompt in request.prompts]
        return [_check(token_ids, request, params, engine) for token_ids in token_lists]
    except InvalidParameter as error:
        # The engine knows only prompts; a chat client has sent messages.
        if error.param == "prompt" != request.prompt_parameter:
            raise InvalidParameter(request.prompt_parameter, str(error)) from error
        raise


def grammar_of(grammar: CompiledGrammar, prompt: PreparedPrompt) -> CompiledGrammar:
    """What is left of a grammar behind the answer so far. Long answers take long, so this belongs in a worker thread.

    Raises:
        InvalidParameter: the answer so far does not follow the grammar.
    """
    if not prompt.num_output_tokens:
        return grammar
    try:
        return grammar.after(prompt.output_token_ids)
    except GrammarError as error:
        raise InvalidParameter(
            "num_prompt_output_tokens",
            f"the last {prompt.num_output_tokens} tokens of the prompt do not begin an answer that follows its "
            f"grammar: {error}",
        ) from error


def _with_tokens_of_texts(
    params: SamplingParams,
    request: GenerationRequest,
    text_model: TextModel,
    *,
    default_breakers: Sequence[str] | None,
) -> SamplingParams:
    """`params` with what the tokenizer makes of the words and sequence breakers of `request`.

    Args:
        default_breakers: where the request has none; None leaves those of `params`.

    Raises:
        InvalidParameter: a word makes too many tokens, or there are too many words.
    """
    if request.bad_words is not None:
        params = replace(params, bad_words=bad_word_ids(request.bad_words, text_model.tokenizer))
    breakers = default_breakers if request.sequence_breakers is None else request.sequence_breakers
    if breakers is not None and params.dry_multiplier > 0.0:
        params = replace(params, dry_breaker_ids=text_model.tokenizer.token_ids_with(breakers))
    return params


def _takes_long(request: GenerationRequest) -> bool:
    if request.sampling.get("dry_multiplier"):
        return True  # the whole vocabulary may have to be looked through for sequence breakers
    num_chars = sum(prompt.num_chars for prompt in request.prompts)
    num_chars += sum(2 * (len(word) + WORD_CHARS) for word in request.bad_words or ())
    return num_chars > MAX_INLINE_CHARS


def _check(
    token_ids: list[int], request: GenerationRequest, params: SamplingParams, engine: EngineClient
) -> PreparedPrompt:
    num_output = request.num_prompt_output_tokens
    room = engine.model_info.max_model_len - len(token_ids) + num_output
    if request.max_tokens is None and room > 0:  # without room the engine refuses the prompt
        max_tokens = request.limit_tokens(room)
        if max_tokens != params.max_tokens:
            params = replace(params, max_tokens=max_tokens)
    engine.check_prompt(token_ids, params.max_tokens, request.max_tokens_parameter, num_prompt_output_tokens=num_output)
    return PreparedPrompt(token_ids, request.params_of_answers(params), request.num_choices, num_output)
