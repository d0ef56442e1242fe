"""Our page classes and vLLM's Python classes behind one interface, for `benchmarks.pages`."""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

PAGE_SIZE = 16  # tokens

Pages = list[Any]
Prompt = Any  # the object of a side for a token sequence and the names of its pages


class OurSide:
    """The classes of this project."""

    def __init__(self) -> None:
        from cache import free_queue, hashing, page, pool

        self._pool_type, self._queue_type = pool.PagePool, free_queue.FreeCachePageQueue
        self._page_type = page.CachePage
        self._hash_page, self._hash_pages = hashing.sha256_hash, hashing.hash_request_tokens

    def reset(self, num_pages: int) -> None:
        """Makes a new pool."""
        self._pool = self._pool_type(num_pages)

    def allocate(self, num_pages: int) -> Pages:
        return self._pool.allocate(num_pages)

    def release(self, pages: Pages) -> None:
        self._pool.release(pages)

    def touch(self, pages: Pages) -> None:
        self._pool.touch(pages)

    def prompt(self, token_ids: list[int]) -> Prompt:
        """A request of these tokens, whose pages have no hashes yet."""
        return SimpleNamespace(token_ids=token_ids, hashes=[])

    def name_pages(self, prompt: Prompt) -> None:
        """Hashes the full pages that have no hash yet."""
        prompt.hashes += self._hash_pages(self._hash_page, PAGE_SIZE, prompt.token_ids, known=prompt.hashes)

    def append(self, prompt: Prompt, token_ids: list[int]) -> None:
        prompt.token_ids += token_ids

    def cache(self, prompt: Prompt, pages: Pages) -> None:
        for page, page_hash in zip(pages, prompt.hashes, strict=True):
            self._pool.cache_page(page, page_hash)

    def look_up(self, prompt: Prompt) -> Pages:
        """The pages of the longest cached prefix."""
        return self._pool.match_prefix(prompt.hashes)

    def queue(self, num_pages: int) -> tuple[Any, Pages]:
        """A free queue without a pool, and its pages."""
        pages = [self._page_type(page_id) for page_id in range(num_pages)]
        return self._queue_type(pages), pages


class VllmSide:
    """vLLM's classes, called as its KV cache manager calls them."""

    def __init__(self) -> None:
        self._utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self._pool_type = importlib.import_module("vllm.v1.core.block_pool").BlockPool
        sha256 = importlib.import_module("vllm.utils.hashing").sha256
        self._utils.init_none_hash(sha256)
        self._hasher = self._utils.get_request_block_hasher(PAGE_SIZE, sha256)

    def reset(self, num_pages: int) -> None:
        self._pool = self._pool_type(num_pages, enable_caching=True, hash_block_size=PAGE_SIZE)

    def allocate(self, num_pages: int) -> Pages:
        blocks: Pages = self._pool.get_new_blocks(num_pages)
        return blocks

    def release(self, pages: Pages) -> None:
        self._pool.free_blocks(reversed(pages))

    def touch(self, pages: Pages) -> None:
        self._pool.touch(pages)

    def prompt(self, token_ids: list[int]) -> Prompt:
        return SimpleNamespace(
            all_token_ids=token_ids, num_tokens=len(token_ids), block_hashes=[], mm_features=[], lora_request=None,
            cache_salt=None, prompt_embeds=None,
        )  # fmt: skip

    def name_pages(self, prompt: Prompt) -> None:
        prompt.block_hashes.extend(self._hasher(prompt))

    def append(self, prompt: Prompt, token_ids: list[int]) -> None:
        prompt.all_token_ids += token_ids
        prompt.num_tokens += len(token_ids)

    def cache(self, prompt: Prompt, pages: Pages) -> None:
        self._pool.cache_full_blocks(prompt, pages, 0, len(pages), PAGE_SIZE, 0)

    def look_up(self, prompt: Prompt) -> Pages:
        found = []
        for block_hash in prompt.block_hashes:
            blocks = self._pool.get_cached_block(block_hash, [0])
            if not blocks:
                break
            found += blocks
        return found

    def queue(self, num_pages: int) -> tuple[Any, Pages]:
        blocks = [self._utils.KVCacheBlock(block_id) for block_id in range(num_pages)]
        return self._utils.FreeKVCacheBlockQueue(blocks), blocks


Side = OurSide | VllmSide
SIDES: dict[str, Callable[[], Side]] = {"eagre": OurSide, "vllm": VllmSide}
