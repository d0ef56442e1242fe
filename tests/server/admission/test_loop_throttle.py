"""How many begin in one turn of the loop, and in which order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from server.admission.loop_throttle import LoopThrottle
from tests.patience import PATIENCE_S

MOST = 3


async def begun_in_each_turn(begun: list[int], num_all: int) -> list[int]:
    """How many have begun in each turn of the loop, until `num_all` have."""
    counts, num_before = [], len(begun)
    while num_before < num_all:
        await asyncio.sleep(0)
        counts.append(len(begun) - num_before)
        num_before = len(begun)
    return counts


async def test_many_that_come_at_once_begin_in_many_turns_and_in_their_order() -> None:
    turns, begun = LoopThrottle(MOST), list[int]()

    async def come(number: int) -> None:
        await turns.next()
        begun.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(20)]
    counts = await begun_in_each_turn(begun, len(tasks))
    assert max(counts) == MOST
    assert begun == list(range(20))


async def test_clients_that_come_and_leave_faster_than_turns_do_not_pile_up() -> None:
    turns = LoopThrottle(1, newest_first=True)
    left = [asyncio.create_task(turns.next()) for _ in range(2000)]
    stays = [asyncio.create_task(turns.next()) for _ in range(300)]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    left.clear()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not all(task.done() for task in stays)
    loop, futures = asyncio.get_running_loop(), (each for each in gc.get_objects() if type(each) is asyncio.Future)
    assert sum(each.get_loop() is loop and each.cancelled() for each in futures) < 1000
    await asyncio.gather(*stays)


async def test_one_that_never_waits_gives_the_loop_its_turns() -> None:
    turns, begun = LoopThrottle(MOST), list[int]()

    async def go_on() -> None:
        for number in range(20):
            await turns.next()
            begun.append(number)

    going = asyncio.create_task(go_on())
    counts = await begun_in_each_turn(begun, 20)
    assert max(counts) == MOST
    await going


async def test_few_need_not_wait() -> None:
    turns, begun = LoopThrottle(MOST), list[int]()

    async def come(number: int) -> None:
        await turns.next()
        begun.append(number)

    for _ in range(3):
        tasks = [asyncio.create_task(come(number)) for number in range(MOST)]
        await asyncio.sleep(0)
        assert all(task.done() for task in tasks)


async def test_who_comes_later_does_not_overtake() -> None:
    turns, begun = LoopThrottle(1), list[int]()

    async def come(number: int) -> None:
        await turns.next()
        begun.append(number)

    tasks = []
    for number in range(10):
        tasks += [asyncio.create_task(come(2 * number)), asyncio.create_task(come(2 * number + 1))]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert begun == list(range(20))


async def test_those_who_have_left_take_no_turn() -> None:
    turns, begun = LoopThrottle(1), list[int]()

    async def come(number: int) -> None:
        await turns.next()
        begun.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[1:19]:
        task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert begun == [0, 19]
    assert await asyncio.gather(*tasks[1:19], return_exceptions=True)
    for task in tasks[1:19]:
        assert task.cancelled()


async def test_owners_take_turns() -> None:
    turns, begun = LoopThrottle(1), list[str]()

    async def come(owner: str) -> None:
        await turns.next(owner)
        begun.append(owner)

    tasks = [asyncio.create_task(come("many")) for _ in range(20)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(come("few")))
    await asyncio.gather(*tasks)
    assert begun.index("few") <= 3
    assert begun.count("many") == 20


async def test_turns_go_on_after_one_that_failed_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, begun = LoopThrottle(1), list[int]()
    loop = asyncio.get_running_loop()

    async def come(number: int) -> None:
        await turns.next()
        begun.append(number)

    def refuse(callback: Callable[..., object], *args: object, **options: Any) -> asyncio.Handle:
        if getattr(callback, "__self__", None) is turns:
            raise MemoryError
        return call_soon(callback, *args, **options)

    call_soon = loop.call_soon
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    tasks = [asyncio.create_task(come(number)) for number in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon", refuse)
            while not reported:
                await asyncio.sleep(0)
            with pytest.raises(MemoryError):
                await turns.next()
        await asyncio.gather(*tasks, come(3))
    assert begun == [0, 1, 2, 3]
