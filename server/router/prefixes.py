"""How the prompt of a request begins, as hashes, and which beginnings a replica has had."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

BLOCK_BYTES = 256  # of a prompt; about one page of tokens
MAX_BLOCKS = 128  # of one prompt that are looked at; what follows says little more about where it should go
MAX_REMEMBERED = 1 << 16  # blocks of one replica: 16 MiB of prompts, some megabytes of memory

_HASH_BYTES = 8
# What stands before the messages in the prompts of most chat templates, and the prompts of the other routes.
_BEFORE_MESSAGES = ("tools", "system", "instructions")
_PROMPTS = ("messages", "prompt", "input")
_SCOPE = ("model", "cache_salt")  # requests that differ in these share no cached prefix


def prefix_blocks(body: Mapping[str, Any], tenant: str) -> list[int]:
    """Hashes of the first blocks of a request's prompt. Each hash stands for its block and all blocks before it.

    Prompts are compared as the request has them, because tokens are not known here. Two equal beginnings have equal
    hashes; a short rest at the end has none.

    Args:
        body: the decoded request of any generating route. Values of wrong types are as good as others.
        tenant: whose request it is; tenants share no cached prefix.
    """
    text = b"".join(_pieces(body))[: MAX_BLOCKS * BLOCK_BYTES]
    scope = orjson.dumps([tenant, *(str(body.get(name)) for name in _SCOPE)])
    state, blocks = blake2b(scope, digest_size=_HASH_BYTES).digest(), []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        state = blake2b(state + text[start : start + BLOCK_BYTES], digest_size=_HASH_BYTES).digest()
        blocks.append(int.from_bytes(state, "little"))
    return blocks


def _pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    """The parts of the prompt in their order, as many as are looked at."""
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


class RememberedPrefixes:
    """The blocks of the prompts that one replica has had; those that were not met for longest are forgotten first."""

    def __init__(self, max_blocks: int = MAX_REMEMBERED) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def count(self, blocks: Sequence[int]) -> int:
        """How many blocks at the beginning of these were met."""
        for index, block in enumerate(blocks):
            if block not in self._blocks:
                return index
        return len(blocks)

    def remember(self, blocks: Sequence[int]) -> None:
        """Notes that the replica gets a prompt of these blocks."""
        for block in reversed(blocks):  # a block counts only behind those before it, so the first one is kept longest
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def forget(self) -> None:
        """The replica has started anew."""
        self._blocks.clear()
