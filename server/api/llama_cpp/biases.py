"""The forms of llama.cpp's `logit_bias`: pairs or an object, of token ids or texts."""

from __future__ import annotations

from typing import Any, NamedTuple

from sampling.host.params import MAX_BIAS, MAX_LOGIT_BIAS
from server.protocol.errors import ApiError, invalid_value, shorten

MAX_CHARS = 256  # of a text


class Biases(NamedTuple):
    """Biases by what they name."""

    of_ids: dict[str, Any]  # OpenAI's form, unchecked
    of_texts: list[tuple[str, float]]  # each token of a text has its bias

    @classmethod
    def of(cls, value: list[Any] | dict[str, Any]) -> Biases:
        """A bias of false forbids the token. Raises ApiError."""
        pairs = [list(pair) for pair in value.items()] if isinstance(value, dict) else value
        if len(pairs) > MAX_LOGIT_BIAS:
            raise _refusal(f"logit_bias has {len(pairs)} entries; at most {MAX_LOGIT_BIAS} are allowed")
        biases = cls({}, [])
        for pair in pairs:
            if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (int, str)):
                raise _refusal(
                    f"logit_bias has the entry {shorten(pair)}; it must be a token id or a text, and a number or false"
                )
            name, bias = str(pair[0]), -MAX_BIAS if pair[1] is False else pair[1]
            if isinstance(pair[0], int) or (name.isascii() and name.isdigit()):
                biases.of_ids[name] = bias
                continue
            if not 1 <= len(name) <= MAX_CHARS:
                raise _refusal(f"logit_bias has a text of {len(name)} characters; each must have from 1 to {MAX_CHARS}")
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise _refusal(f"logit_bias of {shorten(name)} is {shorten(bias)}; it must be a number, or false")
            biases.of_texts.append((name, bias))
        return biases


def _refusal(message: str) -> ApiError:
    return invalid_value(message, "logit_bias")
