"""The vocabulary of a `tokenizer.json`, through the `tokenizers` library that defines the format.

Outputs arrive token by token, so text is made by a table of each token's bytes, from the decoder of the pipeline.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import orjson
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers

from engine.interface.errors import ModelError
from server.text.tokenization.byte_alphabet import bytes_of
from server.text.tokenization.control_tokens import is_control_name
from server.text.tokenization.encoder_vocabularies import piece_bytes
from server.text.tokenization.folder_metadata import MAX_VOCAB_SIZE
from server.text.tokenization.tokenizers_encoder import TokenizersEncoder

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PROBE = "a\ufdd0"  # a text that shows what the pipeline adds around texts; no vocabulary has its last character

BytesOf = Callable[[Sequence[str]], list[bytes]]


class TokenizerJson(TokenizersEncoder):
    """A vocabulary with its pipeline. Raises ModelError if its decoder is not supported.

    The file at `path` has it, and `decoder` is that of the pipeline, as `tokenizer.json` states it; `special_tokens`
    are special even if the file does not say so. With `is_lowered` the capitals of texts are lowered before all else.
    """

    def __init__(
        self, path: Path, pipeline: Tokenizer, decoder: Any, special_tokens: Sequence[str] = (), *,
        is_lowered: bool = False,
    ) -> None:  # fmt: skip
        self._path, self._tokenizer = path, pipeline
        # The file may store these from training, but a prompt must be neither cut nor padded.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if is_lowered:
            usual = self._tokenizer.normalizer
            self._tokenizer.normalizer = Lowercase() if usual is None else Normalizers([Lowercase(), usual])
        self._mark_special(special_tokens)
        self.tokens = self._token_table()
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.token_bytes = self._bytes_of(decoder)(self.tokens)
        for token_id, token in added.items():
            self.token_bytes[token_id] = b"" if token.special else token.content.encode("utf-8")
        self.prefix_ids, self.suffix_ids = self._around_a_text()
        self.between_ids = self._between_texts()
        control_ids = [token_id for token_id, token in added.items() if token.special or is_control_name(token.content)]
        super().__init__(self._tokenizer, added, control_ids)

    @classmethod
    def read(cls, path: Path, text: str, special_tokens: Sequence[str] = (), *, is_lowered: bool = False) -> Self:
        """The vocabulary of a `tokenizer.json` with the content `text`; raises ModelError also if it is damaged."""
        try:
            decoder = orjson.loads(text).get("decoder")
            pipeline = Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"{path} is damaged, or of a kind that is not known: {error}") from error
        return cls(path, pipeline, decoder, special_tokens, is_lowered=is_lowered)

    def _mark_special(self, tokens: Sequence[str]) -> None:
        special = {token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special}
        known = [token for token in tokens if self._tokenizer.token_to_id(token) is not None]
        self._tokenizer.add_special_tokens([token for token in known if token not in special])

    def _token_table(self) -> list[str]:
        """The tokens by id; an id without a token gets an empty string."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        highest = max(vocabulary.values(), default=-1)
        if not 0 <= highest < MAX_VOCAB_SIZE:
            raise ModelError(
                f"{self._path}: the highest token id is {highest}; it must be from 0 to {MAX_VOCAB_SIZE - 1}"
            )
        tokens = [""] * (highest + 1)
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
        return tokens

    def _around_a_text(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        try:
            alone = self._tokenizer.encode(PROBE, add_special_tokens=False).ids
            around = self._tokenizer.encode(PROBE, add_special_tokens=True).ids
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"{self._path} cannot tokenise every text: {error}") from error
        for start in range(len(around) - len(alone) + 1):
            end = start + len(alone)
            if around[start:end] == alone:
                return tuple(around[:start]), tuple(around[end:])
        raise ModelError(f"{self._path}: the post_processor does not leave a text's tokens as they are")

    def _between_texts(self) -> tuple[int, ...] | None:
        """The tokens between the two texts of a pair; None where the pipeline adds others than around one text."""
        try:
            alone = self._tokenizer.encode(PROBE, add_special_tokens=False).ids
            pair = tuple(self._tokenizer.encode(PROBE, PROBE, add_special_tokens=True).ids)
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"{self._path} cannot tokenise a pair of texts: {error}") from error
        before, behind = (*self.prefix_ids, *alone), (*alone, *self.suffix_ids)
        if len(pair) < len(before) + len(behind) or pair[: len(before)] != before or pair[-len(behind) :] != behind:
            return None
        return pair[len(before) : len(pair) - len(behind)]

    def _bytes_of(self, decoder: Any) -> BytesOf:
        """A function that turns tokens of the vocabulary into bytes of text, as the stored decoder does."""
        steps = list(_steps(decoder))
        kinds = {str(step.get("type")) for step in steps}
        if kinds == {"ByteLevel"}:
            return bytes_of
        if kinds == {"WordPiece"}:
            prefix = steps[0].get("prefix")
            return lambda tokens: piece_bytes(tokens, prefix if isinstance(prefix, str) else "##")
        if not kinds & {"Replace", "Metaspace"}:
            raise self._unknown_decoder(kinds)
        replacements: list[tuple[str, str]] = []
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
                    replacements.append((old, new))
                case {"type": "Metaspace", "replacement": str(mark)}:
                    replacements.append((mark, " "))
                case {"type": "Strip", "content": " ", "stop": 0}:
                    # This removes the first space of a whole text. An output continues a prompt, so its
                    # first space is part of the text.
                    pass
                case {"type": "ByteFallback" | "Fuse"}:
                    pass
                case _:
                    raise self._unknown_decoder(kinds)
        has_bytes = "ByteFallback" in kinds
        return lambda tokens: [_marked(token, replacements, has_bytes=has_bytes) for token in tokens]

    def _unknown_decoder(self, kinds: set[str]) -> ModelError:
        return ModelError(
            f"{self._path}: the decoder {', '.join(sorted(kinds)) or 'null'} is not supported; supported are "
            "ByteLevel, WordPiece, Metaspace, and Replace with ByteFallback, Fuse and Strip"
        )


def _steps(decoder: Any) -> Iterator[dict[str, Any]]:
    match decoder:
        case {"type": "Sequence", "decoders": list(parts)}:
            for part in parts:
                yield from _steps(part)
        case dict():
            yield decoder


def _marked(token: str, replacements: Sequence[tuple[str, str]], *, has_bytes: bool) -> bytes:
    """The bytes of a SentencePiece token, whose spaces are written as a mark and unknown bytes as `<0xFF>`."""
    if has_bytes and (match := BYTE_TOKEN.fullmatch(token)):
        return bytes([int(match[1], 16)])
    for old, new in replacements:
        token = token.replace(old, new)
    return token.encode("utf-8")
