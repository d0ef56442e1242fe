"""The vocabularies of PLaMo 2 and 3 in GGUF files, through the `tokenizers` library."""

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Unigram

from engine.interface.errors import ModelError
from server.text.tokenization.control_tokens import Part
from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType
from server.text.tokenization.sentencepiece_vocabulary import stated_byte
from server.text.tokenization.tokenizers_encoder import TokenizersEncoder

_UNKNOWN = -10_000_000  # what a character costs that becomes bytes
_PENALTY = 10  # what the library takes from the lowest score to have that of such a character
_SCALE = 1e4  # of scores, which are then whole numbers, so that sums are exact
_BYTE_ORDER_MARK = "\ufeff"


class PlamoUnigram(TokenizersEncoder):
    """The way to write a text with the highest sum of scores; a character that no token writes becomes bytes.

    Where two ways have the same sum, PLaMo's own code may take the other one. Raises ModelError.
    """

    def __init__(self, metadata: GgufMetadata) -> None:
        tokens, types = metadata.tokens, metadata.token_types
        if types.count(TokenType.BYTE) != 256:
            raise ModelError(f"the vocabulary of PLaMo has {types.count(TokenType.BYTE)} tokens of bytes, and not 256")
        try:
            scores = [max(float(round(score * _SCALE)), _UNKNOWN + _PENALTY) for score in metadata.scores]
            for token_id in metadata.other_ids:
                # A text that has a byte's name is written in another way. One such score has to be there.
                if types[token_id] == TokenType.BYTE:
                    scores[token_id] = _UNKNOWN + _PENALTY
            unknown_id = types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else 0
            model = Unigram(list(zip(tokens, scores, strict=True)), unknown_id, byte_fallback=True)
            self.token_bytes = [
                stated_byte(token) if kind == TokenType.BYTE
                else b"" if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED) else token.encode("utf-8")
                for token, kind in zip(tokens, types, strict=True)
            ]  # fmt: skip
        except Exception as error:  # the library raises no narrower type; a score may be no number
            raise ModelError(f"the vocabulary of PLaMo is not accepted: {error}") from error
        tokenizer = Tokenizer(model)
        control = {
            token_id: AddedToken(tokens[token_id], normalized=False, special=True) for token_id in metadata.control_ids
        }
        tokenizer.add_tokens(list(control.values()))
        super().__init__(tokenizer, control, metadata.control_ids)
        self.tokens = tokens

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        return super().encode(text.removeprefix(_BYTE_ORDER_MARK), max_tokens)

    def encode_parts(self, parts: Iterable[Part], mark: str, max_tokens: int | None = None) -> list[int]:
        first, *others = list(parts) or [""]
        if isinstance(first, str):
            first = first.removeprefix(_BYTE_ORDER_MARK)
        return super().encode_parts([first, *others], mark, max_tokens)
