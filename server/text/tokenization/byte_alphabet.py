"""GPT-2's byte alphabet (`bytes_to_unicode`): each byte is written as one printable character."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt


def byte_of_character() -> dict[str, int]:
    """The byte of each character: printable Latin-1 is written as itself, other bytes in order from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_NO_BYTE = 0x100


def _numbers() -> npt.NDArray[np.uint16]:
    """The byte of each character by code point, or _NO_BYTE; all beyond the table are as its last one."""
    numbers = np.full(0x200, _NO_BYTE, np.uint16)
    for character, byte in byte_of_character().items():
        numbers[ord(character)] = byte
    return numbers


_NUMBERS = _numbers()


def bytes_of(tokens: Sequence[str]) -> list[bytes]:
    """The bytes of each token. One with a character outside the alphabet was added as plain text, in UTF-8.

    A start waits for this, so all tokens are looked up together and taken apart again.
    """
    written, plain = list(tokens), dict[int, bytes]()
    codes, numbers = _look_up(written)
    strange = set(map(chr, codes[numbers == _NO_BYTE]))
    if strange:
        for token_id, token in enumerate(tokens):
            if not strange.isdisjoint(token):
                plain[token_id], written[token_id] = token.encode("utf-8"), ""
        _, numbers = _look_up(written)
    whole = numbers.astype(np.uint8).tobytes()
    pieces = [whole[begin:end] for begin, end in pairwise(accumulate(map(len, written), initial=0))]
    for token_id, piece in plain.items():
        pieces[token_id] = piece
    return pieces


def _look_up(tokens: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16]]:
    codes = np.frombuffer("".join(tokens).encode("utf-32-le"), "<u4")
    return codes, _NUMBERS[np.minimum(codes, len(_NUMBERS) - 1)]
