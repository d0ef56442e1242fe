"""A real engine with a folder for its pages: what is read is bit for bit what was computed."""

import asyncio
import contextlib
import dataclasses
import shutil
import threading

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import EngineConfig
from engine.kv_transfer.disk import DiskConnector
from engine.kv_transfer.kv_offload import KVOffload
from engine.kv_transfer.page_folder import PageFolder
from engine.kv_transfer.page_server import PageServer
from sampling.host.params import SamplingParams
from server.model_sources.cache_folder import cache_folder
from server.startup.progress import silent
from tests.gguf_tensors import VOCAB_SIZE, write_random_model
from tests.patience import PATIENCE_S

PROMPT = [int(token) for token in np.random.default_rng(0).integers(0, VOCAB_SIZE, 150)]
PAGE_SIZE = 16
KEY = "a-secret-of-page-servers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def engine(tmp_path_factory, folder):
    path = write_random_model(tmp_path_factory.mktemp("model") / "model.gguf", lambda name: Kind.Q8_0)
    config = EngineConfig(
        max_num_seqs=1, max_num_batched_tokens=64, max_model_len=256, page_size=PAGE_SIZE, num_pages=40, seed=0,
        prefix_cache_dir=str(folder), compilation_cache=str(cache_folder() / "compiled"),
    )  # fmt: skip
    loaded = Engine.load(path, config, silent)
    assert loaded._kv_offload.transfers.connector is not None, "the first request would find no pages"
    return loaded


@dataclasses.dataclass
class Seen:
    """What a request got, and what the device holds of its prompt."""

    token_ids: list[int]
    num_cached_tokens: int
    pages: list[np.ndarray]


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def ask(engine, *, before=None, salt=None):
    """Starts an engine without any page in memory, and asks for the prompt."""
    engine.pool.reset_prefix_cache()

    async def run():
        client = EngineClient(engine)
        client.start(asyncio.get_running_loop())
        try:
            await until(lambda: engine._kv_offload.transfers.connector is not None)
            if before is not None:
                await before(client)
                await until(lambda: engine._kv_offload.transfers.connector is not None)
            seen = Seen([], 0, [])
            params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
            async for event in client.submit(PROMPT, params, cache_salt=salt):
                seen.token_ids += event.token_ids
                seen.num_cached_tokens = event.num_cached_tokens
            return seen
        finally:
            client.shutdown()

    seen = asyncio.run(run())
    named = sorted((page for page in engine.pool.pages if page.page_hash), key=lambda page: page.page_hash.token_ids)
    leaves = [
        np.asarray(leaf) for leaf in jax.tree.leaves(engine.runner.arrays.kv)
    ]  # pages of integers have scales too
    seen.pages = [
        np.concatenate([np.ascontiguousarray(leaf[:, page.page_id]).view(np.uint8).reshape(-1) for leaf in leaves])
        for page in named
    ]
    assert engine.stats().compiles_after_ready == 0
    return seen


def test_a_restart_finds_the_pages_and_damage_is_computed_again(engine, folder, caplog):
    cold = ask(engine)
    assert cold.num_cached_tokens == 0
    (shelf,) = (path for path in folder.iterdir() if path.name != "digests")
    files = sorted(shelf.iterdir())
    assert len(files) == len(cold.pages) == (len(PROMPT) + 19) // PAGE_SIZE

    warm = ask(engine)
    assert warm.num_cached_tokens == len(PROMPT) // PAGE_SIZE * PAGE_SIZE
    assert warm.token_ids == cold.token_ids
    for computed, read in zip(cold.pages, warm.pages, strict=True):
        assert (computed == read).all()

    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
    again = ask(engine)
    assert again.token_ids == cold.token_ids
    assert again.num_cached_tokens == 0
    assert "is damaged and will be computed again" in caplog.text
    # Some behind the first may have been read ahead; the others are found when they are read.
    assert 1 <= engine.stats().kept.num_damaged_pages <= len(files)
    assert ask(engine).num_cached_tokens >= PAGE_SIZE


def test_a_reset_empties_the_folder_and_salts_stay_apart(engine, folder):
    async def reset(client):
        assert await client.lifecycle.reset_prefix_cache()

    ask(engine)
    assert ask(engine, before=reset).num_cached_tokens == 0
    cached = ask(engine).num_cached_tokens
    assert cached > 0
    assert ask(engine, salt="another key").num_cached_tokens == 0
    assert ask(engine, salt="another key").num_cached_tokens == cached


def test_a_sleeping_engine_finds_its_pages_again(engine):
    async def sleep(client):
        await client.lifecycle.sleep(forget_weights=True)
        await client.lifecycle.wake()

    expected = ask(engine)
    woken = ask(engine, before=sleep)
    assert woken.num_cached_tokens > 0
    assert woken.token_ids == expected.token_ids


def test_the_first_request_after_a_sleep_finds_its_pages(engine):
    """They are open at once, because the weights come from the same files."""
    transfers = engine._kv_offload.transfers
    ask(engine)

    async def sleep(client):
        await client.lifecycle.sleep(forget_weights=True)
        await client.lifecycle.wake()
        assert transfers.connector is not None

    assert ask(engine, before=sleep).num_cached_tokens > 0


def test_a_folder_of_an_unknown_user_is_refused_by_name(engine):
    config = dataclasses.replace(engine.config, prefix_cache_dir="~nobody-of-this-name/pages")
    with pytest.raises(ValueError, match="prefix_cache_dir is '~nobody-of-this-name/pages'"):
        KVOffload(config, engine.pool, engine.runner.pages, engine._kv_offload.files, [])


def test_an_engine_that_cannot_publish_its_pages_ends_its_threads(engine, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("kv_events cannot listen")

    transfers = engine._kv_offload.transfers
    transfers.start()
    asyncio.run(until(lambda: transfers.connector is not None))
    monkeypatch.setattr("engine.engine.KVEventPublisher", refuse)
    monkeypatch.setattr(engine, "config", dataclasses.replace(engine.config, kv_events="tcp://*:9"))
    with pytest.raises(ValueError, match="cannot listen"):
        EngineClient(engine)
    assert transfers.connector is None


def threads_of_pages():
    return {thread for thread in threading.enumerate() if thread.name.startswith(("eagre-pages", "page memory"))}


@pytest.mark.parametrize(
    "failing", ["step.compiled.CompiledPrograms.compile", "engine.page_parts", "engine.give_back_freed"]
)
def test_a_load_that_fails_late_ends_what_it_has_started(engine, tmp_path, monkeypatch, failing):
    """Threads that waited for ever held the weights."""

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(f"engine.{failing}", fail)
    monkeypatch.setattr("engine.step.page_memory._HUGE_PAGE", 1)  # so that not all pages have memory at once
    config = dataclasses.replace(engine.config, prefix_cache_dir=str(tmp_path))
    before = threads_of_pages()
    with pytest.raises(MemoryError, match="no room"):
        Engine.load(engine.model_path, config, silent)
    asyncio.run(until(lambda: threads_of_pages() <= before))


def test_an_address_is_free_again_where_the_system_gives_no_threads_for_pages(engine, tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    with contextlib.closing(PageServer("127.0.0.1", 0, KEY)) as server:
        port = server.port
    config = dataclasses.replace(
        engine.config, prefix_cache_dir=str(tmp_path), prefix_cache_listen=f"127.0.0.1:{port}", prefix_cache_key=KEY
    )
    with monkeypatch.context() as patched:
        patched.setattr("engine.kv_transfer.transfers.PageTransfers.start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            KVOffload(config, engine.pool, engine.runner.pages, engine._kv_offload.files, [])
    PageServer("127.0.0.1", port, KEY).close()


def test_other_weights_have_other_pages(engine, folder, tmp_path):
    other = write_random_model(tmp_path / "other.gguf", lambda name: Kind.Q8_0, seed=1)

    async def update(client):
        await client.lifecycle.update_weights(other)

    first = ask(engine)
    num_shelves = len(list(folder.iterdir()))
    second = ask(engine, before=update)
    assert second.num_cached_tokens == 0
    assert second.token_ids != first.token_ids
    assert len(list(folder.iterdir())) == num_shelves + 1
    assert ask(engine).num_cached_tokens > 0


def test_pages_that_another_server_has_computed_are_read_from_it(engine, tmp_path):
    async def reset(client):
        assert await client.lifecycle.reset_prefix_cache()

    computed = ask(engine, before=reset)  # so that no damaged page of an earlier test is left
    shelf = engine._kv_offload._connector._shelf
    shutil.copytree(shelf, tmp_path / shelf.name)
    page_bytes = engine.runner.pages.page_bytes
    there = DiskConnector(PageFolder(tmp_path, 1 << 30), shelf.name, page_bytes)
    alone = engine._kv_offload._config
    with contextlib.closing(PageServer("127.0.0.1", 0, KEY)) as server:
        server.offer(there, shelf.name, page_bytes)
        peers = (f"127.0.0.1:{server.port}",)
        engine._kv_offload._config = dataclasses.replace(alone, prefix_cache_peers=peers, prefix_cache_key=KEY)
        for file in shelf.iterdir():
            file.unlink()

        async def told(client):
            await until(lambda: all(engine._kv_offload.transfers.connector.holds(name) for name in there.names()))

        read = ask(engine, before=told)
    engine._kv_offload._config = alone
    assert read.num_cached_tokens == len(PROMPT) // PAGE_SIZE * PAGE_SIZE
    assert read.token_ids == computed.token_ids
    for one, other in zip(computed.pages, read.pages, strict=True):
        assert (one == other).all()


def test_peers_are_left_where_the_system_gives_no_thread_for_another(engine, tmp_path, monkeypatch):
    following, num_refused = [], 0

    class Peer:
        num_damaged = 0

        def __init__(self, address, *_):
            nonlocal num_refused
            if len(following) == 3:  # the second of the second time
                num_refused += 1
                raise RuntimeError("can't start new thread")
            following.append(self)

        def close(self):
            following.remove(self)
            following.append(None)

    monkeypatch.setattr("engine.kv_transfer.kv_offload.Peer", Peer)
    config = dataclasses.replace(
        engine.config, prefix_cache_dir=str(tmp_path), prefix_cache_peers=("a:1", "b:1"), prefix_cache_key=KEY
    )
    kept = KVOffload(config, engine.pool, engine.runner.pages, engine._kv_offload.files, [])
    asyncio.run(until(lambda: kept.transfers.connector is not None))
    kept.open()
    asyncio.run(until(lambda: num_refused))
    kept.close(PATIENCE_S)
    assert following == [None] * 3


def test_an_address_that_is_taken_is_refused_by_name(engine):
    with contextlib.closing(PageServer("127.0.0.1", 0, KEY)) as server:
        address = f"127.0.0.1:{server.port}"
        config = dataclasses.replace(engine.config, prefix_cache_listen=address, prefix_cache_key=KEY)
        with pytest.raises(ValueError, match=f"prefix_cache_listen is '{address}'"):
            KVOffload(config, engine.pool, engine.runner.pages, engine._kv_offload.files, [])
