"""Byte-level BPE vocabularies, as GPT-2 introduced them, through the `tokenizers` library.

Every byte is written as one printable character. Models differ in how a text is split before (`pre_tokenizers.py`).
"""

from collections.abc import Sequence
from itertools import repeat

import structlog
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

from engine.interface.errors import ModelError
from server.text.tokenization.byte_alphabet import bytes_of
from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType
from server.text.tokenization.pre_tokenizers import SCHEMES, Scheme
from server.text.tokenization.tokenizers_encoder import TokenizersEncoder

log: structlog.stdlib.BoundLogger = structlog.get_logger("eagre")


class ByteLevelBpe(TokenizersEncoder):
    """A byte-level BPE vocabulary of a GGUF file; raises ModelError if its pre-tokenizer is not supported."""

    def __init__(self, metadata: GgufMetadata) -> None:
        scheme = _scheme(metadata.tokenizer_pre)
        vocabulary = dict(zip(metadata.tokens, range(len(metadata.tokens)), strict=True))
        merges = merge_pairs(metadata.merges)
        try:
            model = BPE(vocabulary, merges, ignore_merges=scheme.ignore_merges)
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"the merges (tokenizer.ggml.merges) do not fit the vocabulary: {error}") from error
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = scheme.pre_tokenizer()
        if scheme.is_nfc:
            tokenizer.normalizer = NFC()
        whole = {
            vocabulary[token]: AddedToken(token, normalized=False, special=token_type == TokenType.CONTROL)
            for token, token_type in ((metadata.tokens[i], metadata.token_types[i]) for i in metadata.other_ids)
            if token_type in (TokenType.CONTROL, TokenType.USER_DEFINED) and token
        }
        tokenizer.add_tokens(list(whole.values()))
        control_ids = {vocabulary[metadata.tokens[token_id]] for token_id in metadata.control_ids}
        super().__init__(tokenizer, whole, control_ids)
        self.add_bos_token = scheme.add_bos_token if metadata.add_bos_token is None else metadata.add_bos_token
        self.tokens = metadata.tokens
        self.token_bytes = _token_bytes(metadata)


def _scheme(name: str | None) -> Scheme:
    """Raises ModelError for an unknown pre-tokenizer: any other would give answers that look right and are not."""
    if name is None:
        log.warning(
            "no_pre_tokenizer",
            reason="the file lacks tokenizer.ggml.pre, so texts are split by the default; in training it may have "
            "been another way, and then answers are worse",
        )
        return SCHEMES["default"]
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise ModelError(
            f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported are {', '.join(SCHEMES)}"
        )
    return scheme


def merge_pairs(merges: Sequence[str], place: str = "tokenizer.ggml.merges") -> list[tuple[str, str]]:
    """The two tokens of each merge; raises ModelError, which names their place, where one is not a pair."""
    # A start waits for this, so all are taken apart together where each has just one space.
    if set(map(str.count, merges, repeat(" "))) == {1}:
        parts = " ".join(merges).split(" ")
        if all(parts):
            return list(zip(parts[::2], parts[1::2], strict=True))
    pairs = [merge.partition(" ") for merge in merges]
    for merge, pair in zip(merges, pairs, strict=True):
        if not all(pair):
            raise ModelError(f"the merge {merge!r} ({place}) is not two tokens with a space between")
    return [(left, right) for left, _, right in pairs]


def _token_bytes(metadata: GgufMetadata) -> list[bytes]:
    written = list(metadata.tokens)
    for token_id in metadata.other_ids:
        written[token_id] = ""
    token_bytes = bytes_of(written)
    for token_id in metadata.other_ids:
        if metadata.token_types[token_id] == TokenType.USER_DEFINED:
            token_bytes[token_id] = metadata.tokens[token_id].encode("utf-8")
    return token_bytes
