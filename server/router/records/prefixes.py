"""Hashes of the prefixes of prompts, and the index of the prefixes that a replica has seen."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from server.router.records.lru_dict import LruDict

BLOCK_BYTES = 256  # of a prompt; about one page of tokens
MAX_BLOCKS = 128  # of one prompt; what follows says little more about where it should go
MAX_INDEXED = 1 << 16  # blocks of one replica: 16 MiB of prompts, some megabytes of memory

_HASH_BYTES = 8
# What most chat templates put before the messages, and the prompts of the other routes.
_BEFORE_MESSAGES = ("tools", "system", "instructions")
_PROMPTS = ("messages", "prompt", "input")
_SCOPE = ("model", "cache_salt")  # requests that differ in these share no cached prefix


def prefix_blocks(body: Mapping[str, Any], tenant: str) -> list[int]:
    """Hashes of the first blocks of a tenant's prompt. Each hash covers its block and all blocks before it.

    Prompts are hashed as text of the body, in which wrong types do no harm, because the router has no tokenizer.
    """
    text = b"".join(_pieces(body))[: MAX_BLOCKS * BLOCK_BYTES]
    scope = orjson.dumps([tenant, *(str(body.get(name)) for name in _SCOPE)])
    state, blocks = blake2b(scope, digest_size=_HASH_BYTES).digest(), []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        state = blake2b(state + text[start : start + BLOCK_BYTES], digest_size=_HASH_BYTES).digest()
        blocks.append(int.from_bytes(state, "little"))
    return blocks


def _pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    left = MAX_BLOCKS * BLOCK_BYTES
    parts: list[Any] = [body[name] for name in _BEFORE_MESSAGES if body.get(name)]
    for name in _PROMPTS:
        value = body.get(name)
        if isinstance(value, list):
            # Of several prompts the first one decides; of token ids one takes two bytes at least.
            parts += value[:1] if value and isinstance(value[0], str | list) else value[:left]
        elif value:
            parts.append(value)
    for part in parts:
        if left <= 0:
            return
        piece = part[:left].encode("utf-8", "surrogatepass") if isinstance(part, str) else orjson.dumps(part) + b"\n"
        left -= len(piece)
        yield piece


class PrefixIndex(LruDict[int, None]):
    """The blocks of the prompts that were sent to one replica: a guess at what is in its prefix cache."""

    def __init__(self, max_blocks: int = MAX_INDEXED) -> None:
        super().__init__(max_blocks)

    def match(self, blocks: Sequence[int]) -> int:
        """How many blocks at the beginning of these are in the index."""
        for index, block in enumerate(blocks):
            if block not in self:
                return index
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # a block counts only after those before it, so the first one stays longest
            self[block] = None
