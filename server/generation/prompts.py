"""From a request to the token ids and parameters that the engine takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from engine.interface.types import PromptPicture
from sampling.host.grammar import GrammarError
from sampling.host.params import MAX_SEED, MAX_STOP_TOKEN_IDS, InvalidParameter, SamplingParams
from server.admission.workers import Workers
from server.generation.bad_words import bad_word_ids
from server.generation.generation_request import GenerationRequest
from server.generation.picture_prompt import PicturePrompt
from server.generation.prompt_sources import (
    COUNTED_CHARS,
    MAX_INLINE_CHARS,
    InfillPrompt,
    PromptSource,
    TextPrompt,
    TokenPrompt,
)
from server.media.picture_format import PictureFormat
from server.media.picture_loader import PictureLoader
from server.protocol.sampling_fields import DEFAULT_BREAKERS
from server.structured_output.output_grammar import OutputGrammar
from server.text.detokenizer import IncrementalDetokenizer
from server.text.template_limits import PromptTextTooLong, TemplateTimeout
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

MAX_SHORT_CHARS = COUNTED_CHARS  # above it, in one of the threads for long calls: it takes about as long as a step
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
    pictures: tuple[PromptPicture, ...] = ()

    @property
    def output_token_ids(self) -> list[int]:
        """The answer so far, where it is part of the prompt."""
        return self.token_ids[len(self.token_ids) - self.num_output_tokens :]


async def with_pictures(request: GenerationRequest, text_model: TextModel, loader: PictureLoader) -> GenerationRequest:
    """The request with its pictures decoded, where the model sees them; raises ApiError or QueueFull."""
    pictures = [picture for prompt in request.prompts for picture in prompt.pictures]
    if not pictures or text_model.pictures is None:
        return request
    decoded = await loader.load(pictures, text_model.pictures)
    return replace(request, prompts=[prompt.with_decoded(decoded) for prompt in request.prompts])


async def prepare(
    request: GenerationRequest, text_model: TextModel, engine: EngineClient, workers: Workers
) -> list[PreparedPrompt]:
    """`prepare_here`, in a worker thread where it takes long. Raises what that raises."""
    template, work = text_model.chat_template, work_of(request)
    if work <= MAX_INLINE_CHARS and (template is None or not template.is_slow):
        try:
            return prepare_here(request, text_model, engine, is_brief=True)
        except TemplateTimeout:
            pass  # it begins again in a worker thread, and a slow template is run there from then on
        except PromptTextTooLong as error:
            work = error.num_chars
    run = workers.run_long if work > MAX_SHORT_CHARS else workers.run
    return await run(prepare_here, request, text_model, engine)


def prepare_here(
    request: GenerationRequest,
    text_model: TextModel,
    engine: EngineClient,
    base: SamplingParams | None = None,
    *,
    is_brief: bool = False,
) -> list[PreparedPrompt]:
    """Tokenises and checks every prompt of `request` before any of them is submitted. May run in any thread.

    Parameters of `base`, or of the model's makers, hold where the request says nothing. Raises as
    `PromptSource.encode`.
    """
    max_model_len = engine.model_info.max_model_len
    params = _sampling_params(request, text_model, max_model_len, base)  # first: they are less work to refuse
    params.check_token_ids(engine.model_info.vocab_size)
    prepared, num_output = [], request.num_prompt_output_tokens
    try:
        for source in request.prompts:
            if request.most_prompt_tokens is None and not request.echoes:
                token_ids, echo = source.encode(text_model, max_model_len, is_brief=is_brief), ""
            else:
                token_ids, echo = _encode(source, request, text_model, max_model_len, is_brief=is_brief)
            own = params
            room = max_model_len - len(token_ids) + min(num_output, len(token_ids))
            if request.max_tokens is None and room > 0:  # without room the engine refuses the prompt
                max_tokens = _limit_tokens(request, room)
                if max_tokens != params.max_tokens:
                    own = params.with_max_tokens(max_tokens)
            engine.check_prompt(
                token_ids, own.max_tokens, request.max_tokens_parameter, num_prompt_output_tokens=num_output
            )
            answers = (own,) * request.num_sampled if own.seed is None else _with_seeds(own, own.seed, request)
            pictures = _pictures_in(token_ids, source, request.prompt_parameter, text_model.pictures)
            prepared.append(PreparedPrompt(token_ids, answers, request.num_choices, num_output, echo, pictures))
    except InvalidParameter as error:
        # The engine knows only prompts; a chat client has sent messages.
        if error.param == "prompt" != request.prompt_parameter:
            raise error.renamed(request.prompt_parameter) from error
        raise
    return prepared


def _pictures_in(
    token_ids: Sequence[int], source: PromptSource, parameter: str, form: PictureFormat | None
) -> tuple[PromptPicture, ...]:
    """The pictures of a prompt, each tile at the positions of its tokens; the first ones of a cut prompt are missing.

    Raises InvalidParameter where tokens of pictures stand alone.
    """
    if form is None:
        return ()
    placed: list[PromptPicture] = []
    of_pictures = form.token_ids
    places = [at for at, token_id in enumerate(token_ids) if token_id in of_pictures]
    end = len(places)
    for tile in reversed([tile for picture in source.decoded for tile in picture.tiles]):
        if not end:
            break
        first = end - tile.num_tokens
        if first < 0:
            break
        picture = PromptPicture(
            places[first], tile.num_tokens, tile.digest, tile.pixels, tile.grid, form.has_row_ends, tile.time
        )  # fmt: skip
        if list(picture.positions) != places[first:end]:
            break
        placed.append(picture)
        end = first
    if end:
        raise InvalidParameter(
            parameter,
            f"the prompt has the token {token_ids[places[end - 1]]}, which stands for a part of a picture, without its "
            "picture",
        )
    return tuple(reversed(placed))


def _without_cut_picture(
    token_ids: list[int], num_kept: int, num_last: int, pictures: Sequence[PromptPicture], source: PromptSource
) -> list[int]:
    """The first and the last tokens of a prompt; of a picture that would be cut, none of its tiles."""
    first, tiles = len(token_ids) - num_last, iter(pictures)
    for picture in source.decoded:
        of_picture = list(islice(tiles, len(picture.tiles)))
        if of_picture and of_picture[0].start < first < of_picture[-1].end:
            first = of_picture[-1].end
    return token_ids[:num_kept] + token_ids[first:]


def rules_behind(rules: OutputGrammar, prompt: PreparedPrompt) -> OutputGrammar:
    """What is left of the rules behind the answer so far, in a worker thread; raises InvalidParameter."""
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


def work_of(request: GenerationRequest) -> int:
    """The work on the texts and parameters of `request`, in characters of a text that takes as long to tokenise."""
    if request.sampling.get("dry_multiplier"):
        return sys.maxsize  # the whole vocabulary may have to be looked through for sequence breakers
    num_chars = ANSWER_CHARS * len(request.prompts) * request.num_sampled
    num_chars += len(request.prompts) * len(request.sampling.get("logit_bias", ())) // BIASES_OF_A_CHAR
    for prompt in request.prompts:
        num_chars += prompt.num_chars
        if request.echoes and isinstance(prompt, TokenPrompt):
            num_chars += len(prompt.token_ids)
    for word in (*(request.bad_words or ()), *(text for text, _ in request.text_biases)):
        num_chars += 2 * (len(word) + WORD_CHARS)
    return num_chars


def _sampling_params(
    request: GenerationRequest, text_model: TextModel, max_model_len: int, base: SamplingParams | None
) -> SamplingParams:
    """The parameters of every answer, but for its seed; raises InvalidParameter."""
    values: dict[str, Any] = {**(text_model.sampling_defaults if base is None else {}), **request.sampling}
    values["max_tokens"] = _limit_tokens(request, max_model_len)
    if request.text_biases:
        values["logit_bias"] = _with_biases_of_texts(request, text_model.tokenizer)
    if request.bad_words is not None:
        values["bad_words"] = bad_word_ids(request.bad_words, text_model.tokenizer)
    breakers = request.sequence_breakers
    if breakers is None and base is None:
        breakers = DEFAULT_BREAKERS
    multiplier = values.get("dry_multiplier", 0.0 if base is None else base.dry_multiplier)
    if breakers is not None and multiplier:
        values["dry_breaker_ids"] = text_model.tokenizer.token_ids_with(breakers)
    params = SamplingParams(**values) if base is None else replace(base, **values)
    if request.num_sampled > request.num_choices and params.logprobs is None:
        params = replace(params, logprobs=0)  # the best answers are chosen by it
    if text_model.infill is not None and any(isinstance(prompt, InfillPrompt) for prompt in request.prompts):
        ends = (*params.stop_token_ids, *text_model.infill.end_ids)
        params = replace(params, stop_token_ids=tuple(dict.fromkeys(ends))[:MAX_STOP_TOKEN_IDS])
    return params


def _with_biases_of_texts(request: GenerationRequest, tokenizer: Tokenizer) -> tuple[tuple[int, float], ...]:
    """The request's biases with those of the tokens of its texts; the last of a token holds."""
    biases: dict[int, float] = dict(request.sampling.get("logit_bias", ()))
    for text, bias in request.text_biases:
        biases |= dict.fromkeys(tokenizer.encode(text, add_special_tokens=False), bias)
    return tuple(biases.items())


def _limit_tokens(request: GenerationRequest, room: int) -> int:
    """The most tokens to generate where the model has `room` after the prompt; raises InvalidParameter if below one."""
    if request.echoes and request.only_echoes:
        return 1
    if request.max_tokens is None:
        return room if request.default_max_tokens is None else min(request.default_max_tokens, room)
    if request.max_tokens < 1:
        name = request.max_tokens_parameter
        raise InvalidParameter(name, f"{name} is {request.max_tokens}; it must be at least 1")
    return request.max_tokens


def _with_seeds(params: SamplingParams, seed: int, request: GenerationRequest) -> tuple[SamplingParams, ...]:
    """`params` for each answer to a prompt, each with a seed of its own, ascending from the given one."""
    return tuple(params.with_seed(_wrapped(seed + answer)) for answer in range(request.num_sampled))


def _wrapped(seed: int) -> int:
    """A seed in 64 bits, like the engine's own."""
    return (seed + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - MAX_SEED - 1


def _encode(
    source: PromptSource, request: GenerationRequest, text_model: TextModel, max_model_len: int, *, is_brief: bool
) -> tuple[list[int], str]:
    """The token ids of a prompt, no more than are wanted, and the text with which its answers begin."""
    tokenizer, most = text_model.tokenizer, request.most_prompt_tokens
    if most is None:
        token_ids = source.encode(text_model, max_model_len, is_brief=is_brief)
    else:
        token_ids = source.encode(text_model, is_brief=is_brief)
        if most == -1:
            most = max(1, max_model_len - _limit_tokens(request, 1) + request.num_prompt_output_tokens)
        if len(token_ids) > most and request.keeps_first_tokens:
            if source.decoded:
                raise InvalidParameter(
                    "truncation_side",
                    f"truncation_side is right and the prompt has {len(token_ids)} tokens, to be cut to {most}; one "
                    "with pictures is cut at its beginning alone",
                )
            token_ids = token_ids[:most]
            return token_ids, _text_of(token_ids, tokenizer) if request.echoes else ""
        if len(token_ids) > most:
            # What the tokenizer puts before a text stays, as in Hugging Face's tokenizers.
            has_special = isinstance(source, PicturePrompt) or (isinstance(source, TextPrompt) and source.adds_special)
            num_kept = min(tokenizer.num_prefix_tokens, most) if has_special else 0
            num_last = most - num_kept
            pictures = _pictures_in(token_ids, source, request.prompt_parameter, text_model.pictures)
            token_ids = _without_cut_picture(token_ids, num_kept, num_last, pictures, source)
            return token_ids, _text_of(token_ids, tokenizer) if request.echoes else ""
    if not request.echoes:
        return token_ids, ""
    return token_ids, source.text if isinstance(source, TextPrompt) else _text_of(token_ids, tokenizer)


def _text_of(token_ids: list[int], tokenizer: Tokenizer) -> str:
    """Without the bytes of a character that the answer will complete; raises InvalidParameter for unknown tokens."""
    try:
        return IncrementalDetokenizer(tokenizer).decode(token_ids)
    except IndexError:
        raise InvalidParameter("prompt", f"the prompt has a token id beyond {tokenizer.vocab_size - 1}") from None
