"""The tokenizer of a model: text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Protocol

from engine.interface.errors import ModelError
from server.text.tokenization.byte_level_bpe import ByteLevelBpe
from server.text.tokenization.control_tokens import (
    END_TOKENS,
    HARMONY_ENDS,
    OTHER_END_TOKENS,
    ControlTokens,
    Part,
    ShieldedText,
    choose_mark,
    without_mark,
)
from server.text.tokenization.encoder_vocabularies import UnigramVocabulary, WordPieceVocabulary
from server.text.tokenization.gguf_metadata import GgufMetadata
from server.text.tokenization.plamo_unigram import PlamoUnigram
from server.text.tokenization.sentencepiece_vocabulary import SentencePieceVocabulary
from server.text.tokenization.spaced_bpe import PRE_TOKENIZERS, SpacedBpe

_REMEMBERED_SEARCHES = 64
_USUAL_CHARS = 4  # of a token
_HOPELESS_CHARS = 4 * _USUAL_CHARS  # for each token that is allowed: usual text has then four times too many tokens


class Vocabulary(Protocol):
    """What a `Tokenizer` needs of a model's vocabulary: its tokens, and the splitting of a text into them."""

    @property
    def tokens(self) -> Sequence[str]:
        """Each token as the vocabulary writes it, by token id."""
        ...

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """The bytes of text that each token stands for, by token id; empty for control tokens."""
        ...

    @property
    def control(self) -> ControlTokens:
        """The control tokens that `encode` finds in a text."""
        ...

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`, in which names become control tokens; raises TooManyTokens or NativeLibraryError."""
        ...

    def encode_parts(self, parts: Iterable[Part], mark: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of texts and control tokens; no text becomes a control token. Raises as `encode`.

        `mark` is one of `control_tokens.MARKS` that is in none of the texts.
        """
        ...


class Tokenizer:
    """The tokenizer of a model.

    `token_bytes[token_id]` are the bytes of text that a token stands for, perhaps a part of a character, empty for
    control tokens. Models need `prefix_ids` before and `suffix_ids` after every text, and `between_ids` between the
    texts of a pair, None where they take no pairs. Ids from the vocabulary to `vocab_size`, which is the matrices',
    stand for no text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        prefix_ids: tuple[int, ...] = (),
        suffix_ids: tuple[int, ...] = (),
        between_ids: tuple[int, ...] | None = None,
        vocab_size: int = 0,
    ) -> None:
        num_unknown = max(0, vocab_size - len(vocabulary.tokens))
        self._vocabulary = vocabulary
        self._tokens = [*vocabulary.tokens, *[""] * num_unknown]
        self.token_bytes = [*vocabulary.token_bytes, *[b""] * num_unknown]
        for token_id in eos_token_ids:  # some are stored as text, and an end is none
            self.token_bytes[token_id] = b""
        self.vocab_size = len(self._tokens)
        # The largest number of bytes that one token can match in a prompt, where names of control tokens count too.
        longest = max(map(len, self.token_bytes))
        long_names = [name for name in self._tokens if len(name) > longest // 4]  # a character has at most 4 bytes
        self.max_token_bytes = max([longest, *map(len, map(str.encode, long_names))])
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self._prefix_ids, self._suffix_ids = list(prefix_ids), list(suffix_ids)
        self.between_ids = between_ids
        # The cache belongs to the instance, so that it does not keep the tokenizer alive.
        self._remembered_ids_with = lru_cache(maxsize=_REMEMBERED_SEARCHES)(self._find_ids_with)

    @classmethod
    def from_gguf(cls, metadata: GgufMetadata) -> Tokenizer:
        """The tokenizer of a GGUF file; raises ModelError where its vocabulary or pre-tokenizer is not supported."""
        if metadata.tokenizer_model == "bert":
            pieces = WordPieceVocabulary(metadata)
            around, behind = (pieces.cls_id,), (pieces.sep_id,)
            return cls(
                pieces, bos_token_id=pieces.cls_id, eos_token_ids=(), prefix_ids=around, suffix_ids=behind,
                between_ids=behind,
            )  # fmt: skip
        bos_token_id, eos_token_id = metadata.bos_token_id, metadata.eos_token_id
        vocabulary, adds_bos_token, adds_eos_token = _gguf_vocabulary(metadata)
        stated = (metadata.eos_token_id, metadata.eot_token_id, metadata.eom_token_id)
        return cls(
            vocabulary,
            bos_token_id=bos_token_id,
            eos_token_ids=end_token_ids(stated, metadata.tokens, metadata.control_ids),
            prefix_ids=(bos_token_id,) if adds_bos_token and bos_token_id is not None else (),
            suffix_ids=(eos_token_id,) if adds_eos_token and eos_token_id is not None else (),
            between_ids=_between_ids(metadata) if adds_eos_token else None,
        )

    @property
    def tokens(self) -> Sequence[str]:
        return self._tokens

    @property
    def num_prefix_tokens(self) -> int:
        return len(self._prefix_ids)

    @property
    def prefix_ids(self) -> Sequence[int]:
        return self._prefix_ids

    @property
    def suffix_ids(self) -> Sequence[int]:
        return self._suffix_ids

    @property
    def add_bos_token(self) -> bool:
        return self.bos_token_id is not None and self._prefix_ids[:1] == [self.bos_token_id]

    @property
    def control(self) -> ControlTokens:
        return self._vocabulary.control

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`; names of control tokens in it become those tokens.

        Args:
            add_special_tokens: whether to add the tokens that the model needs around a text, as no chat template does;
                those that the text already has are not added again.
            max_tokens: the largest number that the caller can use. Without this limit, a text of millions of tokens
                blocks all other threads for a tenth of a second, while its list is made.

        Raises:
            TooManyTokens: the text itself has more than `max_tokens`.
            ValueError: the text is not Unicode (it holds half of a surrogate pair).
            NativeLibraryError: a native library fails on the text.
        """
        _check_unicode(text)
        self.refuse_far_too_long(text, max_tokens)
        token_ids = self._vocabulary.encode(text, max_tokens)
        if not add_special_tokens:
            return token_ids
        before, behind = self._prefix_ids, self._suffix_ids
        if before and token_ids[: len(before)] == before:
            before = []
        if behind and token_ids[-len(behind) :] == behind:
            behind = []
        return [*before, *token_ids, *behind]

    def encode_parts(self, parts: Sequence[Part], *, max_tokens: int | None = None) -> list[int]:
        """Token ids of texts, in which no name becomes a token, and control tokens, after the prefix."""
        texts = [part for part in parts if isinstance(part, str)]
        for text in texts:
            _check_unicode(text)
            self.refuse_far_too_long(text, max_tokens)
        mark = choose_mark(texts)
        if mark is None:
            raise ValueError("the texts have all of Unicode's noncharacters; the server needs one of them for itself")
        token_ids = list(self._prefix_ids)
        for part in parts:
            token_ids += [part] if isinstance(part, int) else self._vocabulary.encode_parts([part], mark, max_tokens)
        return token_ids

    def encode_shielded(self, shielded: ShieldedText, *, max_tokens: int | None = None) -> list[int]:
        """Token ids of a rendered chat template, whose own text alone becomes control tokens; raises as `encode`."""
        text, mark, plain = shielded.text, shielded.mark, shielded.plain
        _check_unicode(plain)
        self.refuse_far_too_long(plain, max_tokens)
        if self.control.is_exact and (
            len(plain) == len(text) or _are_equal(self.control.split(plain), _unmarked(self.control.split(text), mark))
        ):
            return self._vocabulary.encode(plain, max_tokens)  # the messages have written no control token
        return self._vocabulary.encode_parts(_unmarked(self.control.split(text), mark), mark, max_tokens)

    def refuse_far_too_long(self, text: str, max_tokens: int | None) -> None:
        """Tokenizes beginnings of a very long text, so that the work does not grow with texts that are refused.

        The first beginning is enough for unusual text, of which each character is a token or more, the second for usual
        text. Text of even longer tokens is left to the caller, because it may fit.

        Raises TooManyTokens: a beginning alone has more than twice as many tokens as allowed. What follows it could
        join its last tokens, and never half of them. Otherwise raises as `encode`.
        """
        if max_tokens is None:
            return
        for num_chars in (_USUAL_CHARS * max_tokens, _HOPELESS_CHARS * max_tokens):
            if len(text) > num_chars:
                beginning = text[:num_chars]
                _check_unicode(beginning)
                self._vocabulary.encode(beginning, 2 * max_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids` without control tokens, U+FFFD for bytes that are no UTF-8; raises IndexError."""
        table = self.token_bytes
        return b"".join([table[token_id] for token_id in token_ids]).decode("utf-8", errors="replace")

    def decode_with_names(self, token_ids: Sequence[int]) -> str:
        """The same with the names of control tokens."""
        table, names = self.token_bytes, self._tokens
        data = b"".join([table[token_id] or names[token_id].encode() for token_id in token_ids])
        return data.decode("utf-8", errors="replace")

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        return len(self.encode(text, add_special_tokens=add_special_tokens))

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it, for example `<|im_end|>` or `Ġthe`."""
        return self._tokens[token_id]

    def token_ids_with(self, texts: Collection[str]) -> tuple[int, ...]:
        """The tokens whose text contains one of `texts`, of a control token its name; recent results are cached."""
        return self._remembered_ids_with(frozenset(texts))

    def _find_ids_with(self, texts: frozenset[str]) -> tuple[int, ...]:
        if not texts:
            return ()
        has_one = re.compile(b"|".join(re.escape(text.encode("utf-8")) for text in sorted(texts))).search
        return tuple(
            token_id
            for token_id, (data, name) in enumerate(zip(self.token_bytes, self._tokens, strict=True))
            if has_one(data or name.encode("utf-8"))
        )


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text holds a lone surrogate at position {error.start}") from error


def _unmarked(parts: Iterable[Part], mark: str) -> Iterator[Part]:
    for part in parts:
        unmarked = part if isinstance(part, int) else without_mark(part, mark)
        if unmarked != "":
            yield unmarked


def _are_equal(left: Iterable[Part], right: Iterable[Part]) -> bool:
    return all(one == other for one, other in zip_longest(left, right))


def end_token_ids(stated: Sequence[int | None], tokens: Sequence[str], control_ids: Collection[int]) -> tuple[int, ...]:
    """The tokens that end an output: those that the model states, then control tokens that do so by name."""
    names = {tokens[token_id] for token_id in control_ids}
    ends = END_TOKENS | OTHER_END_TOKENS
    if any(names >= both for both in HARMONY_ENDS):
        ends -= {"<|end|>"}
    named = (token_id for token_id in sorted(control_ids) if tokens[token_id] in ends)
    return tuple(dict.fromkeys([*(token_id for token_id in stated if token_id is not None), *named]))


def _between_ids(metadata: GgufMetadata) -> tuple[int, ...] | None:
    """What stands between the texts of a pair: of XLM-RoBERTa both its tokens, of others a separator."""
    if metadata.sep_token_id is None or metadata.eos_token_id is None:
        return None
    return (metadata.eos_token_id,) * (metadata.tokenizer_model == "t5") + (metadata.sep_token_id,)


def _gguf_vocabulary(metadata: GgufMetadata) -> tuple[Vocabulary, bool, bool]:
    """The vocabulary, and whether a text gets a begin- and an end-of-sequence token; llama.cpp's defaults."""
    adds_bos, adds_eos = metadata.add_bos_token, metadata.add_eos_token
    match metadata.tokenizer_model:
        case "gemma4":  # which needs the first token even where a file says that it does not
            return SpacedBpe(metadata), True, adds_eos is True
        case "gpt2" if metadata.tokenizer_pre in PRE_TOKENIZERS:
            return SpacedBpe(metadata), adds_bos is True, adds_eos is True
        case "gpt2":
            vocabulary = ByteLevelBpe(metadata)
            return vocabulary, vocabulary.add_bos_token, adds_eos is True
        case "llama":
            return SentencePieceVocabulary.from_gguf(metadata), adds_bos is not False, adds_eos is True
        case "t5":
            return UnigramVocabulary(metadata), adds_bos is True, adds_eos is not False
        case "plamo2":
            return PlamoUnigram(metadata), adds_bos is True, adds_eos is True
    kind = _REFUSED_KINDS.get(metadata.tokenizer_model, "of a kind that is not known")
    raise ModelError(
        f"the tokenizer {metadata.tokenizer_model!r} (tokenizer.ggml.model) is {kind}, which is not supported; "
        "supported are gpt2 (byte-level BPE), llama (SentencePiece BPE), t5 (SentencePiece Unigram), gemma4, "
        "plamo2 and bert (WordPiece)"
    )


_REFUSED_KINDS = {
    "rwkv": "the greedy one of RWKV",
    "none": "none at all",
    "no_vocab": "none at all",
}
