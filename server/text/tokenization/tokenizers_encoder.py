"""Encodes texts with a pipeline of Hugging Face's `tokenizers` library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from server.text.tokenization.control_tokens import ControlTokens, Part
from server.text.tokenization.native_errors import TooManyTokens, panics_as_errors


def disable_tokenizers_threads() -> None:
    """Keeps the library from encoding in threads of its own, unless TOKENIZERS_PARALLELISM says otherwise.

    A single text gains nothing by them, and the asyncio loop, which encodes short texts itself, would depend on when a
    busy machine runs a thread.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class TokenizersEncoder:
    """A pipeline, and a second one over the same vocabulary that knows no name of a control token.

    The library splits a text at added tokens, and what it does between may depend on their places. So the second
    pipeline has the same tokens under other names, which begin with a character that the text does not contain.

    Args:
        tokenizer: the pipeline; it is not changed any more.
        added: the tokens that `tokenizer` looks for in texts before anything else, by token id.
        control_ids: those of `added` that no message may write.
    """

    def __init__(self, tokenizer: Tokenizer, added: Mapping[int, AddedToken], control_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._added = dict(added)
        self._control_ids = frozenset(control_ids)
        control = [(added[token_id], token_id) for token_id in sorted(self._control_ids)]
        self.control = ControlTokens(
            {token.content: token_id for token, token_id in control},
            is_exact=not any(token.normalized for token, _ in control),
        )
        self._without_names: dict[str, _WithoutNames] = {}  # by mark

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`; names of control tokens in it become those tokens. See `Vocabulary`."""
        return _encode(self._tokenizer, text, max_tokens)

    def encode_parts(self, parts: Iterable[Part], mark: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `parts`; no text of them becomes a control token. See `Vocabulary`."""
        if mark not in self._without_names:
            self._without_names[mark] = self._make_without_names(mark)
        pipeline = self._without_names[mark]
        text = "".join([_stand_in(mark, part) if isinstance(part, int) else part for part in parts])
        token_ids = _encode(pipeline.tokenizer, text, max_tokens)
        if not pipeline.wrong_ids.isdisjoint(token_ids):
            # The vocabulary itself joins characters to such a name; they are looked up one by one.
            token_ids = [each for token_id in token_ids for each in self._spelled(token_id, pipeline)]
        ids = pipeline.ids
        return [ids.get(token_id, token_id) for token_id in token_ids]

    def _make_without_names(self, mark: str) -> _WithoutNames:
        # The model is shared with the first pipeline, so this takes no memory to speak of.
        tokenizer = Tokenizer(self._tokenizer.model)
        if self._tokenizer.normalizer is not None:
            tokenizer.normalizer = self._tokenizer.normalizer
        if self._tokenizer.pre_tokenizer is not None:
            tokenizer.pre_tokenizer = self._tokenizer.pre_tokenizer
        contents: dict[str, int] = {}
        tokens = []
        for token_id, token in self._added.items():
            if token_id in self._control_ids:
                content = _stand_in(mark, token_id)
                token = AddedToken(content, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False, special=True)
            contents[token.content] = token_id
            tokens.append(token)
        tokenizer.add_tokens(tokens)
        ids = {_id_of(tokenizer, content): token_id for content, token_id in contents.items()}
        return _WithoutNames(tokenizer, ids, self._control_ids - ids.keys())

    def _spelled(self, token_id: int, pipeline: _WithoutNames) -> list[int]:
        if token_id not in pipeline.wrong_ids:
            return [token_id]
        model = self._tokenizer.model
        return [
            token.id
            for character in self._added[token_id].content
            for token in model.tokenize(character)
            if token.id not in pipeline.wrong_ids
        ]


@dataclass(frozen=True, slots=True)
class _WithoutNames:
    tokenizer: Tokenizer
    ids: Mapping[int, int]  # of the added tokens, from its own to the vocabulary's
    wrong_ids: Set[int]  # control tokens that only the vocabulary itself can have made of a text


def _stand_in(mark: str, token_id: int) -> str:
    return f"{mark}{token_id}{mark}"


def _id_of(tokenizer: Tokenizer, content: str) -> int:
    token_id = tokenizer.token_to_id(content)
    if token_id is None:
        raise AssertionError(f"the token {content!r} was added and is not there")
    return int(token_id)


def _encode(tokenizer: Tokenizer, text: str, max_tokens: int | None) -> list[int]:
    try:
        # Unlike `encode`, it releases the interpreter lock, and it computes no offsets.
        encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
    except BaseException as error:  # a panic of the library is no Exception
        with panics_as_errors("the tokenizer"):
            raise error
    # Only what can be used is listed: a list of two million ids takes the interpreter lock for 0.1 s.
    if max_tokens is not None and len(encoding) > max_tokens:
        raise TooManyTokens(len(encoding))
    ids: list[int] = encoding.ids
    return ids
