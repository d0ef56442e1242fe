"""The inputs of a request as whole texts, checked for their length."""

from __future__ import annotations

from collections.abc import Sequence

from engine.interface.context_overflow import ContextOverflow
from sampling.host.params import InvalidParameter
from server.generation.prompt_sources import PromptSource, TextPrompt
from server.serving.pooled_texts import DECODER_TOKENS, check_lengths, most_tokens, run_on_texts
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.text.text_model import TextModel
from server.text.tokenization.native_errors import TooManyTokens
from server.text.whole_texts import WholeText, encode_text, tokens_before


async def encode_inputs(
    prompts: Sequence[PromptSource], model: ServedModel, served: ServedModels, *, cut_at: int | None, lead: str = "",
    is_lead_pooled: bool = True,
) -> list[WholeText]:  # fmt: skip
    """Each input with `lead` before it; token ids are taken as they are.

    `cut_at` are the tokens to which inputs are cut; -1: as many as the model takes, None: too long ones are refused.
    Raises InvalidParameter for `input`.
    """
    most, text_model = most_tokens(model), model.text_model
    if cut_at is not None:
        cut_at = most if cut_at == -1 else min(cut_at, most)
    encode = _encode_whole if model.engine.model_info.is_encoder else _encode

    def tokenize() -> list[WholeText]:
        try:
            texts = [encode(prompt, lead, text_model, most, cut_at) for prompt in prompts]
        except InvalidParameter as error:
            raise error.renamed("input") from error
        if is_lead_pooled:
            return texts
        first = tokens_before(text_model.tokenizer, lead)
        return [
            text._replace(first_pooled=first) if isinstance(prompt, TextPrompt) else text
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    num_chars = sum(prompt.num_chars + len(lead) for prompt in prompts)
    texts = await run_on_texts(served.workers, num_chars, tokenize)
    check_lengths(texts, model, "input")
    return texts


def _encode_whole(prompt: PromptSource, lead: str, text_model: TextModel, most: int, cut_at: int | None) -> WholeText:
    """One input of an encoder."""
    if not isinstance(prompt, TextPrompt):
        return WholeText(prompt.encode(text_model, 2 * most)[:cut_at])
    limit, is_cut = (most, False) if cut_at is None else (cut_at, True)
    try:
        return encode_text(text_model.tokenizer, lead + prompt.text, limit, is_cut=is_cut)
    except TooManyTokens as error:
        what = f"an input has at least {error.num_tokens} tokens"
        raise ContextOverflow("input", what, limit=most, num_tokens=error.num_tokens) from error


def _encode(prompt: PromptSource, lead: str, text_model: TextModel, most: int, cut_at: int | None) -> WholeText:
    """One input of a decoder."""
    if isinstance(prompt, TextPrompt):
        if cut_at is not None:
            return encode_text(text_model.tokenizer, lead + prompt.text, cut_at, is_cut=True)
        prompt = prompt._replace(text=lead + prompt.text)
    return WholeText(prompt.encode(text_model, most + DECODER_TOKENS)[:cut_at])
