"""How decoders are shown a query and a document, and the tokens by which they say whether one answers the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from sampling.host.params import InvalidParameter
from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.tokenization.control_tokens import Part
from server.text.tokenizer import Tokenizer
from server.text.whole_texts import WholeText, encode_beginning, longest_first

_QUERY, _DOCUMENT = "{query}", "{document}"  # of llama.cpp's templates
_YES, _NO = "yes", "no"
_LOGIT_SCORE = "LogitScore"  # sentence-transformers' module of rerankers that answer by a token
# Source: the card of Qwen3-Reranker.
_QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    f"<Query>: {_QUERY}\n<Document>: {_DOCUMENT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """The text before a query, between it and a document, and behind that."""

    before: str = ""
    between: str = ""
    behind: str = ""

    @classmethod
    def parse(cls, template: str) -> PairPrompt:
        """Of a template with `{query}` and `{document}`; raises ModelError."""
        before, query, rest = template.partition(_QUERY)
        between, document, behind = rest.partition(_DOCUMENT)
        if not query or not document:
            raise ModelError(f"the template for ranks must have {_QUERY} and then {_DOCUMENT}")
        return cls(before, between, behind)

    def encode(self, tokenizer: Tokenizer, query: str, document: str, most: int, *, is_cut: bool) -> WholeText:
        """A pair as one text, whose query and document cannot become control tokens; with `is_cut` the longer is cut.

        Raises TooManyTokens as `encode_parts`, whose exact number is not checked; InvalidParameter: the prompt itself
        has more than `most` tokens.
        """
        if not is_cut:
            return WholeText(tokenizer.encode_parts(self._parts(tokenizer, query, document), max_tokens=2 * most))
        num_around = len(tokenizer.encode_parts(self._parts(tokenizer, "", "")))
        if num_around > most:
            raise InvalidParameter(
                "truncate_prompt_tokens",
                f"texts are cut to {most} tokens, and the model's prompt for a pair alone has {num_around}",
            )
        room = most - num_around
        in_query, in_document = (len(encode_beginning(tokenizer, text, room)) for text in (query, document))
        num_of_query, room = longest_first(in_query, in_document, room)
        query = cut_text(tokenizer, query, num_of_query)
        while True:
            kept = cut_text(tokenizer, document, room)
            token_ids = tokenizer.encode_parts(self._parts(tokenizer, query, kept))
            # Where a document is cut, a word may fall into more tokens.
            if len(token_ids) <= most or room <= 0:
                return WholeText(token_ids)
            room -= len(token_ids) - most

    def _parts(self, tokenizer: Tokenizer, query: str, document: str) -> list[Part]:
        """Control tokens are those of the prompt itself, and texts beside each other are one."""
        return list(
            _joined(
                [*tokenizer.control.split(self.before), query, *tokenizer.control.split(self.between), document,
                 *tokenizer.control.split(self.behind)]
            )
        )  # fmt: skip


QWEN3 = PairPrompt.parse(_QWEN3)


class AnswerTokens(NamedTuple):
    """The tokens by which a reranker answers."""

    yes: int
    no: int


def cut_text(tokenizer: Tokenizer, text: str, most: int) -> str:
    """The beginning of a text that has so many tokens."""
    if most <= 0:
        return ""
    token_ids = encode_beginning(tokenizer, text, most + 1)
    if len(token_ids) <= most:
        return text
    data = b"".join(tokenizer.token_bytes[token_id] for token_id in token_ids[:most])
    return data.decode("utf-8", errors="ignore")


def read_answer_tokens(folder: ModelFolder) -> AnswerTokens | None:
    """The tokens of a folder's LogitScore module; None where it has none. Raises ModelError."""
    place = next((module.place for module in folder.modules() if module.kind == _LOGIT_SCORE), None)
    if place is None:
        return None
    config = folder.json(f"{place}/config.json")
    if config is None:
        raise ModelError(f"{folder.path} has no {place}/config.json")
    return AnswerTokens(*(config.required_integer(f"{answer}_token_id", least=0) for answer in ("true", "false")))


def pair_prompt_of(template: ChatTemplate | None) -> PairPrompt:
    """That of a chat template with messages of a query and of a document; Qwen3-Reranker's where it has none."""
    if template is not None and "document" in template.source:
        messages = [{"role": "query", "content": _QUERY}, {"role": "document", "content": _DOCUMENT}]
        try:
            return PairPrompt.parse(template.render(messages))
        except (ChatTemplateError, ModelError):
            pass  # its documents are others
    return QWEN3


def usual_answer_tokens(tokenizer: Tokenizer) -> AnswerTokens | None:
    """Those of Qwen3-Reranker, in a vocabulary that has them and the control tokens of its prompt."""
    found = [tokenizer.encode(word, add_special_tokens=False) for word in (_YES, _NO)]
    has_controls = {"<|im_start|>", "<|im_end|>"} <= tokenizer.control.ids.keys()
    if not has_controls or any(len(token_ids) != 1 for token_ids in found):
        return None
    return AnswerTokens(found[0][0], found[1][0])


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        yield part
        text = ""
    if text:
        yield text
