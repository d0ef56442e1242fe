"""A vocabulary of all bytes, some control tokens and pieces of text that cut markers everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from server.structured_output.token_table import TokenTable

CONTROL = ("<e>", "[ARGS]", "<\uff5ctool\u2581calls\u2581begin\uff5c>")
_PIECES = (
    "<think>", "</think>", "</", "think", ">\n", ">\n\n", ">x", "nk>{", "k></", "ink> <", "<tool_call>", "</tool_call>",
    "tool_call", "all>\n", "all>\n{", "all>x", "l>{\"", "so <tool_call", ">.", '{"', '{"na', "me\": ", "} ", "; {",
    '", "', "\n</", "</tool", "Yes",
)  # fmt: skip
TEXTS = [*(bytes([value]) for value in range(256)), *(b"" for _ in CONTROL), *(piece.encode() for piece in _PIECES)]
END, ARGS, CALLS_BEGIN = 256, 257, 258


class Pieces:
    """What a grammar needs of a tokenizer; control tokens have no text."""

    eos_token_ids = (END,)
    token_bytes = tuple(TEXTS)
    vocab_size = len(TEXTS)


# Control tokens but the end have their names as text, as where the parts of an answer are told apart.
SHOWN = [*TEXTS]
SHOWN[ARGS], SHOWN[CALLS_BEGIN] = b"[ARGS]", CONTROL[2].encode()
TABLE = TokenTable(SHOWN, Pieces.eos_token_ids, Pieces.vocab_size)


def bytes_of(text: str) -> list[int]:
    """One token for each byte."""
    return list(text.encode())


def text_of(token_ids: Sequence[int]) -> str:
    return b"".join(TEXTS[token_id] for token_id in token_ids).decode()


def splits(text: str, seed: int) -> list[int]:
    """The text in tokens that are drawn among those which fit."""
    data, token_ids = text.encode(), []
    while data:
        fitting = [token_id for token_id, piece in enumerate(TEXTS) if piece and data.startswith(piece)]
        token_ids.append(fitting[seed % len(fitting)])
        seed = (seed * 1103515245 + 12345) % 2**31
        data = data[len(TEXTS[token_ids[-1]]) :]
    return token_ids
