"""Adapters by name: which are in memory, who waits for a slot, and what becomes of those that are dropped in use."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from engine.interface.types import QueueFull
from server.protocol.errors import ApiError
from server.serving.adapters import MOST_ADAPTERS, Adapters, InSlot
from tests.fakes.engine_client import FakeEngineClient


def adapters_of(engine: FakeEngineClient, *names: str, num_slots: int = 2) -> Adapters:
    adapters = Adapters({name: Path(name) for name in names})
    adapters.open(engine.client, num_slots, {})
    return adapters


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


async def test_an_adapter_is_read_once_and_keeps_its_slot() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "a", "b")
    choices = []
    for name in ("a", "b", "a"):
        async with adapters.use(name) as choice:
            choices.append(choice)
    assert choices[0] == choices[2] != choices[1]
    assert [digest for _, digest in engine.loaded_adapters] == ["a", "b"]


async def test_those_of_the_start_are_there_already() -> None:
    engine = FakeEngineClient()
    adapters = Adapters({"a": Path("a")})
    adapters.open(engine.client, 2, {"a": InSlot(1, "digest")})
    async with adapters.use("a") as choice:
        assert (choice.slot, choice.digest) == (1, "digest")
    assert engine.loaded_adapters == []


async def test_the_one_used_the_longest_ago_makes_room() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "a", "b", "c")
    for name in ("a", "b", "a", "c", "a"):
        async with adapters.use(name):
            await turns(2)
    assert [digest for _, digest in engine.loaded_adapters] == ["a", "b", "c"]  # c took the slot of b


async def test_one_that_finds_no_room_waits_and_is_not_overtaken_for_ever() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "a", "b", num_slots=1)
    began: list[str] = []

    async def use(name: str, until: asyncio.Event) -> None:
        async with adapters.use(name):
            began.append(name)
            await until.wait()

    first, later = asyncio.Event(), asyncio.Event()
    later.set()
    tasks = [asyncio.create_task(use("a", first))]
    await turns()
    tasks.append(asyncio.create_task(use("b", later)))
    await turns()
    tasks.append(asyncio.create_task(use("a", later)))  # comes after b
    await turns()
    assert began == ["a"]
    first.set()
    await asyncio.gather(*tasks)
    assert began == ["a", "b", "a"]


async def test_who_leaves_while_waiting_takes_nothing() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "a", "b", num_slots=1)
    async with adapters.use("a"):

        async def use_b() -> None:
            async with adapters.use("b"):
                raise AssertionError

        waiting = asyncio.create_task(use_b())
        await turns()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with adapters.use("a"):
            pass
    async with adapters.use("b") as choice:
        assert choice.slot == 0


async def test_a_dropped_adapter_stays_for_the_requests_that_run() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "a", "b", num_slots=1)
    async with AsyncExitStack() as running:
        await running.enter_async_context(adapters.use("a"))
        adapters.remove("a")
        assert "a" not in adapters
        with pytest.raises(ApiError) as refused:
            async with adapters.use("a"):
                pass
        assert refused.value.status == 404
        waiting = asyncio.create_task(adapters.use("b").__aenter__())
        await turns()
        assert not waiting.done()
    assert (await waiting).slot == 0


async def test_a_name_may_get_other_weights_while_the_old_ones_are_in_use() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "a")
    async with adapters.use("a") as old:
        with pytest.raises(ApiError, match="loaded already"):
            await adapters.load("a", Path("new"))
        await adapters.load("a", Path("new"), in_place=True)
        async with adapters.use("a") as new:
            assert (old.digest, new.digest) == ("a", "new")
            assert old.slot != new.slot
    await adapters.load("c", Path("c"))
    assert engine.loaded_adapters[-1] == (old.slot, "c")


async def test_adapters_may_be_chosen_by_their_numbers_with_a_scale() -> None:
    adapters = adapters_of(FakeEngineClient(), "a", "b")
    assert adapters.choose(None, ()) is None
    assert adapters.choose("a", ()) == ("a", 1.0)
    assert adapters.choose(None, [(1, 0.5)]) == ("b", 0.5)
    for name, numbers, words in (
        (None, [(2, 1.0)], "the model has 2 adapters"),
        (None, [(0, 1.0), (1, 1.0)], "choose 2 adapters"),
        ("a", [(1, 1.0)], "choose 2 adapters"),
    ):
        with pytest.raises(ApiError, match=words) as refused:
            adapters.choose(name, numbers)
        assert refused.value.param == "lora"


async def test_a_folder_that_cannot_be_used_is_refused_and_changes_nothing() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "bad-one", "a")
    with pytest.raises(ApiError, match="cannot be used: /somewhere/bad: it is bad") as refused:
        await adapters.load("b", Path("/somewhere/bad"))
    assert (refused.value.status, refused.value.param) == (400, "lora_path")
    assert "b" not in adapters
    with pytest.raises(ApiError, match="cannot be read") as failed:
        async with adapters.use("bad-one"):
            pass
    assert failed.value.status == 503
    async with adapters.use("a"):
        pass


async def test_one_that_was_removed_before_the_model_was_loaded_leaves_its_slot() -> None:
    engine = FakeEngineClient()
    adapters = Adapters({"a": Path("a"), "b": Path("b")})
    adapters.remove("a")
    adapters.open(engine.client, 1, {"a": InSlot(0, "digest")})
    async with adapters.use("b") as choice:
        assert choice.slot == 0


async def test_only_so_many_requests_wait_for_adapters() -> None:
    adapters = adapters_of(FakeEngineClient(), "a", "b", num_slots=1)
    async with adapters.use("a", max_waiting=1):
        waiting = asyncio.create_task(adapters.use("b", max_waiting=1).__aenter__())
        await turns()
        with pytest.raises(QueueFull, match="1 requests wait for adapters; the limit is 1"):
            async with adapters.use("b", max_waiting=1):
                pass
    assert (await waiting).slot == 0
    async with adapters.use("b", max_waiting=0):  # in memory
        pass


async def test_a_full_list_of_adapters_lets_names_get_other_weights() -> None:
    adapters = adapters_of(FakeEngineClient(), *(str(number) for number in range(MOST_ADAPTERS)))
    with pytest.raises(ApiError, match="the most that one model has"):
        await adapters.load("new", Path("new"))
    await adapters.load("7", Path("new"), in_place=True)
    async with adapters.use("7") as choice:
        assert choice.digest == "new"


async def test_what_requests_use_and_wait_for_is_told() -> None:
    engine = FakeEngineClient()
    adapters = adapters_of(engine, "a", "b", num_slots=1)
    assert adapters.use_now() == (1, [], [])

    async def use_b() -> None:
        async with adapters.use("b"):
            assert adapters.use_now() == (1, ["b"], [])

    async with adapters.use("a"):
        waiting = asyncio.create_task(use_b())
        while not adapters.use_now().waiting:
            await asyncio.sleep(0)
        assert adapters.use_now() == (1, ["a"], ["b"])
        adapters.remove("a")
        assert adapters.use_now() == (1, ["a"], ["b"])
    await waiting
    assert adapters.use_now() == (1, [], [])
