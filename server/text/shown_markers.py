"""Control tokens that are shown in the text of an answer, because they mark its parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from server.text.detokenizer import HasTokenTexts
from server.text.tokenizer import Tokenizer


class ShownMarkers:
    """The tokens of a model, of which some control tokens stand for their names."""

    def __init__(self, tokenizer: Tokenizer, token_ids: Collection[int]) -> None:
        table = list(tokenizer.token_bytes)
        for token_id in token_ids:
            table[token_id] = tokenizer.token_text(token_id).encode()
        self._tokenizer = tokenizer
        self._token_bytes = table

    @property
    def token_bytes(self) -> Sequence[bytes]:
        return self._token_bytes

    def token_text(self, token_id: int) -> str:
        """As `Tokenizer.token_text`."""
        return self._tokenizer.token_text(token_id)


def show_markers(tokenizer: Tokenizer, names: Collection[str]) -> HasTokenTexts:
    """A view of the tokens in which control tokens of these names have text; without any, `tokenizer` itself."""
    ids = tokenizer.control.ids
    hidden = [ids[name] for name in names if name in ids and not tokenizer.token_bytes[ids[name]]]
    return ShownMarkers(tokenizer, hidden) if hidden else tokenizer
