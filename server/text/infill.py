"""Fill-in-the-middle (FIM) prompts with the model's own FIM tokens (Bavarian et al., 2022)."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from server.text.tokenization.control_tokens import Part

# Of the text before the gap, of the text behind it, and of the gap.
_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
)
_MISTRAL = ("[PREFIX]", "[SUFFIX]")
# Behind the gap, models continue with the next file instead of an end token; so these end the output.
_ENDS = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<fim_pad>", "<file_sep>")
_WANTED = frozenset(chain(*_NAMES, _MISTRAL, _ENDS))


class Infill(NamedTuple):
    """The FIM tokens of a model."""

    prefix: int
    suffix: int
    middle: int | None  # None: the text behind the gap comes first, and the one before it last, as for Mistral's models
    end_ids: tuple[int, ...] = ()  # tokens that end the filling, besides the usual end tokens

    def parts(self, before: Sequence[Part], behind: str) -> list[Part]:
        """The prompt, without a begin-of-sequence token."""
        if self.middle is None:
            return [self.suffix, behind, self.prefix, *before]
        return [self.prefix, *before, self.suffix, behind, self.middle]


def find_infill(tokens: Sequence[str], stated: Sequence[int | None] = ()) -> Infill | None:
    """The FIM tokens of a vocabulary, or those `stated` in the model's file; None where it has none."""
    ids = {name: token_id for token_id, name in enumerate(tokens) if name in _WANTED}
    ends = tuple(ids[name] for name in _ENDS if name in ids)
    match tuple(stated):
        case (int(prefix), int(suffix), int(middle)):
            return Infill(prefix, suffix, middle, ends)
    for before, behind, gap in _NAMES:
        if before in ids and behind in ids and gap in ids:
            return Infill(ids[before], ids[behind], ids[gap], ends)
    if all(name in ids for name in _MISTRAL):
        return Infill(ids[_MISTRAL[0]], ids[_MISTRAL[1]], None, ends)
    return None
