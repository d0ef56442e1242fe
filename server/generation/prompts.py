"""From a request to the token ids and parameters that the engine takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sampling.host.grammar import GrammarError
from sampling.host.params import MAX_STOP_TOKEN_IDS, InvalidParameter, SamplingParams
from server.admission.workers import Workers
from server.generation.bad_words import bad_word_ids
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import COUNTED_CHARS, InfillPrompt, PromptSource, TextPrompt, TokenPrompt
from server.protocol.sampling_fields import DEFAULT_BREAKERS
from server.structured_output.output_grammar import OutputGrammar
from server.text.detokenizer import IncrementalDetokenizer
from server.text.template_limits import PromptTextTooLong, TemplateTimeout, inline_template_limits
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

# Text above this many characters is tokenised in a worker thread: 2 KiB take half a millisecond, and three where the
# text is a strange one. Every stream waits for it, and many such requests may come together.
MAX_INLINE_CHARS = 2 << 10
MAX_SHORT_CHARS = COUNTED_CHARS  # above it, in one of the threads for long calls: it takes about as long as a step
MAX_INLINE_SECONDS = 0.005  # that a chat template may take while the other streams wait
MAX_WRITTEN_CHARS = 4 * MAX_INLINE_CHARS  # that it may write then: its own words stand beside those of the client
WORD_CHARS = 32  # what a bad word costs beside its text, in characters
ANSWER_CHARS = 16  # what the parameters of an answer cost
BIASES_OF_A_CHAR = 4  # biases that are checked in the time of a character, once for each prompt


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt and the parameters of each of its answers. All have passed the engine's checks."""

    token_ids: list[int]
    params: tuple[SamplingParams, ...]  # one for each answer that is generated
    num_wanted: int  # how many of these answers are wanted; the best, where that is not all of them
    num_output_tokens: int = 0  # tokens at its end that are the answer so far
    echo: str = ""  # the text with which each answer begins

    @property
    def output_token_ids(self) -> list[int]:
        """The answer so far, where it is part of the prompt."""
        return self.token_ids[len(self.token_ids) - self.num_output_tokens :]


async def prepare(
    request: GenerationRequest, text_model: TextModel, engine: EngineClient, workers: Workers
) -> list[PreparedPrompt]:
    """`prepare_here`, in a worker thread where it takes long. Raises what that raises."""
    template, work = text_model.chat_template, work_of(request)
    if work <= MAX_INLINE_CHARS and (template is None or not template.is_slow):
        # A template that takes longer or writes more begins again in a worker thread.
        try:
            with inline_template_limits(MAX_INLINE_SECONDS, MAX_WRITTEN_CHARS):
                return prepare_here(request, text_model, engine)
        except TemplateTimeout:
            pass  # a slow template is run in a worker thread from then on
        except PromptTextTooLong as error:
            work = error.num_chars
    run = workers.run_long if work > MAX_SHORT_CHARS else workers.run
    return await run(prepare_here, request, text_model, engine)


def prepare_here(
    request: GenerationRequest, text_model: TextModel, engine: EngineClient, base: SamplingParams | None = None
) -> list[PreparedPrompt]:
    """Tokenises and checks every prompt of `request` before any of them is submitted. May run in any thread.

    Args:
        base: parameters that hold where the request says nothing; None: those that the model's makers recommend.

    Raises:
        ApiError: the chat template refuses the messages, or what it is told beside them is nested too deeply.
        InvalidParameter: a parameter is outside its limits, or a prompt is too long.
        TemplateTimeout, PromptTextTooLong: within `inline_template_limits`, see there.
    """
    max_model_len = engine.model_info.max_model_len
    # The parameters first: they are less work to refuse.
    recommended = SamplingParams(**text_model.sampling_defaults) if base is None else base
    params = request.sampling_params(request.limit_tokens(max_model_len), recommended)
    params = _with_tokens_of_texts(
        params, request, text_model, default_breakers=DEFAULT_BREAKERS if base is None else None
    )
    if text_model.infill is not None and any(isinstance(prompt, InfillPrompt) for prompt in request.prompts):
        ends = (*params.stop_token_ids, *text_model.infill.end_ids)
        params = replace(params, stop_token_ids=tuple(dict.fromkeys(ends))[:MAX_STOP_TOKEN_IDS])
    params.check_token_ids(engine.model_info.vocab_size)
    try:
        encoded = [_encode(prompt, request, text_model, max_model_len) for prompt in request.prompts]
        return [_check(token_ids, echo, request, params, engine) for token_ids, echo in encoded]
    except InvalidParameter as error:
        # The engine knows only prompts; a chat client has sent messages.
        if error.param == "prompt" != request.prompt_parameter:
            raise InvalidParameter(request.prompt_parameter, str(error)) from error
        raise


def rules_behind(rules: OutputGrammar, prompt: PreparedPrompt) -> OutputGrammar:
    """What is left of the rules behind the answer so far. Long answers take long, so this belongs in a worker thread.

    Raises:
        InvalidParameter: the answer so far does not follow the grammar.
    """
    if not prompt.num_output_tokens:
        return rules
    try:
        return rules.after(prompt.output_token_ids)
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


def work_of(request: GenerationRequest) -> int:
    """The work on the texts and parameters of `request`, in characters of a text that takes as long to tokenise."""
    if request.sampling.get("dry_multiplier"):
        return sys.maxsize  # the whole vocabulary may have to be looked through for sequence breakers
    num_chars = sum(prompt.num_chars for prompt in request.prompts)
    if request.echoes:
        num_chars += sum(len(prompt.token_ids) for prompt in request.prompts if isinstance(prompt, TokenPrompt))
    num_chars += ANSWER_CHARS * len(request.prompts) * request.num_sampled
    num_chars += len(request.prompts) * len(request.sampling.get("logit_bias", ())) // BIASES_OF_A_CHAR
    return num_chars + sum(2 * (len(word) + WORD_CHARS) for word in request.bad_words or ())


def _encode(
    source: PromptSource, request: GenerationRequest, text_model: TextModel, max_model_len: int
) -> tuple[list[int], str]:
    """The token ids of a prompt, no more than are wanted, and the text with which its answers begin."""
    tokenizer, most = text_model.tokenizer, request.most_prompt_tokens
    if most is None:
        token_ids = source.encode(text_model, max_model_len)
    else:
        token_ids = source.encode(text_model)
        if most == -1:
            most = max(1, max_model_len - request.limit_tokens(1) + request.num_prompt_output_tokens)
        if len(token_ids) > most:
            # What the tokenizer puts before a text stays, as in Hugging Face's tokenizers.
            has_special = isinstance(source, TextPrompt) and source.adds_special
            num_kept = min(tokenizer.num_prefix_tokens, most) if has_special else 0
            num_last = most - num_kept
            token_ids = token_ids[:num_kept] + token_ids[len(token_ids) - num_last :]
            return token_ids, _text_of(token_ids, tokenizer) if request.echoes else ""
    if not request.echoes:
        return token_ids, ""
    return token_ids, source.text if isinstance(source, TextPrompt) else _text_of(token_ids, tokenizer)


def _text_of(token_ids: list[int], tokenizer: Tokenizer) -> str:
    """Without the bytes of a character that the answer will complete.

    Raises:
        InvalidParameter: a token id is outside the vocabulary.
    """
    try:
        return IncrementalDetokenizer(tokenizer).decode(token_ids)
    except IndexError:
        raise InvalidParameter("prompt", f"the prompt has a token id beyond {tokenizer.vocab_size - 1}") from None


def _check(
    token_ids: list[int], echo: str, request: GenerationRequest, params: SamplingParams, engine: EngineClient
) -> PreparedPrompt:
    num_output = request.num_prompt_output_tokens
    room = engine.model_info.max_model_len - len(token_ids) + min(num_output, len(token_ids))
    if request.max_tokens is None and room > 0:  # without room the engine refuses the prompt
        max_tokens = request.limit_tokens(room)
        if max_tokens != params.max_tokens:
            params = replace(params, max_tokens=max_tokens)
    engine.check_prompt(token_ids, params.max_tokens, request.max_tokens_parameter, num_prompt_output_tokens=num_output)
    return PreparedPrompt(token_ids, request.params_of_answers(params), request.num_choices, num_output, echo)
