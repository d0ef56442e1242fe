"""WordPiece vocabularies, as BERT introduced them (Devlin et al., 2018), through the `tokenizers` library.

A text is normalised and split into words, and a word into the longest pieces that the vocabulary has. So tokens do not
keep the spaces of a text; the text of a token that begins a word begins with one.
"""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from engine.interface.errors import ModelError
from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType
from server.text.tokenization.tokenizers_encoder import TokenizersEncoder

_CONTINUES = "##"  # before a piece that does not begin a word, in the reference's vocabularies
_BEGINS = "\u2581"  # before one that does, in GGUF files
_MAX_WORD_CHARS = 100  # of a word; a longer one is unknown as a whole


class WordPieceVocabulary(TokenizersEncoder):
    """A WordPiece vocabulary of a GGUF file, rebuilt as the reference has it; raises ModelError."""

    def __init__(self, metadata: GgufMetadata) -> None:
        types = metadata.token_types
        written = [_reference_token(token, kind) for token, kind in zip(metadata.tokens, types, strict=True)]
        vocabulary: dict[str, int] = {}
        for token_id, token in enumerate(written):
            vocabulary.setdefault(token, token_id)
        unknown_id = _role(metadata.unknown_token_id, "[UNK]", "unknown", vocabulary)
        self.cls_id = _role(metadata.cls_token_id or metadata.bos_token_id, "[CLS]", "cls", vocabulary)
        self.sep_id = _role(metadata.sep_token_id or metadata.eos_token_id, "[SEP]", "seperator", vocabulary)
        # Files do not say whether a vocabulary has lost its capitals; one with any has been trained with them.
        is_lower = not any(
            kind == TokenType.NORMAL and token != token.lower() for token, kind in zip(written, types, strict=True)
        )
        tokenizer = Tokenizer(
            WordPiece(vocabulary, unk_token=written[unknown_id], max_input_chars_per_word=_MAX_WORD_CHARS)
        )
        tokenizer.normalizer = BertNormalizer(lowercase=is_lower)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        added = {
            token_id: AddedToken(written[token_id], normalized=False, special=types[token_id] == TokenType.CONTROL)
            for token_id in metadata.other_ids
            if written[token_id] and types[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        }
        tokenizer.add_special_tokens([token for token in added.values() if token.special])
        tokenizer.add_tokens([token for token in added.values() if not token.special])
        super().__init__(tokenizer, added, [token_id for token_id, token in added.items() if token.special])
        self.tokens = written
        self.token_bytes = piece_bytes(written)
        for token_id in added:
            self.token_bytes[token_id] = b""


def _role(token_id: int | None, name: str, role: str, vocabulary: Mapping[str, int]) -> int:
    """The token of a role, which older files do not state; raises ModelError where there is none."""
    found = vocabulary.get(name) if token_id is None else token_id
    if found is None:
        raise ModelError(f"the file lacks tokenizer.ggml.{role}_token_id, and its vocabulary has no {name}")
    return found


def piece_bytes(tokens: Sequence[str], prefix: str = _CONTINUES) -> list[bytes]:
    """The text of each token: a piece that begins a word has a space before it."""
    return [
        (token[len(prefix) :] if token.startswith(prefix) else f" {token}").encode("utf-8") if token else b""
        for token in tokens
    ]


def _reference_token(token: str, kind: int) -> str:
    if kind != TokenType.NORMAL:
        return token
    return token[1:] if token.startswith(_BEGINS) else _CONTINUES + token
