"""Answers that go on without their readers, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from server.protocol.errors import ApiError
from server.streams.stream import MAX_READERS, LoggedStream
from server.streams.stream_log import EVENT_BYTES
from server.streams.stream_registry import LOG_SHARE, ROOM_SHARE, StreamRegistry
from tests.server.conftest import eventually

GRACE = 0.3  # seconds
Hold = Callable[..., StreamRegistry]


@pytest.fixture
async def hold() -> AsyncIterator[Hold]:
    """Makes `StreamRegistry`; at the end of a test none of them may have kept a byte."""
    made: list[StreamRegistry] = []

    def make(grace: float = 60.0, max_bytes: int = 1 << 20, max_streams: int = 8) -> StreamRegistry:
        made.append(StreamRegistry(grace=grace, max_bytes=max_bytes, max_streams=max_streams))
        return made[-1]

    yield make
    for held in made:
        await held.close()
        assert (held.num_streams, held.num_bytes) == (0, 0)


class Tap:
    """Work that writes what a test gives it, until it is closed or stopped."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def __call__(self, answer: LoggedStream) -> None:
        answer.begin(self.close)
        while (event := await self.events.get()) is not None:
            answer.log.append(event)

    def close(self) -> None:
        self.events.put_nowait(None)


async def read(answer: LoggedStream, start: int = 0) -> list[bytes]:
    with answer.reading() as log:
        return [event async for events in log.read((start,)) for _, event, _ in events]


async def test_an_answer_goes_on_while_nobody_reads(hold: Hold) -> None:
    held, tap = hold(), Tap()
    answer = held.start("me", tap)
    await answer.begun()
    with answer.reading() as log:
        tap.events.put_nowait(b"a")
        assert [event for _, event, _ in await anext(log.read())] == [b"a"]
    tap.events.put_nowait(b"b")
    tap.close()
    await eventually(lambda: not answer.is_running)
    assert await read(held.find("me", answer.id)) == [b"a", b"b"]


async def test_ids_are_secrets_and_belong_to_their_owner(hold: Hold) -> None:
    held = hold()
    one, two = held.start("me", Tap()), held.start(None, Tap())
    assert one.id != two.id
    assert len(bytes.fromhex(one.id)) == 16
    for owner in ("you", None):
        with pytest.raises(ApiError, match="no stream with the id") as caught:
            held.find(owner, one.id)
        assert (caught.value.status, caught.value.code) == (404, "unknown_stream")
    assert held.get("me", two.id) is None
    assert held.find(None, two.id) is two


async def test_an_answer_that_nobody_reads_is_stopped_and_later_forgotten(hold: Hold) -> None:
    held, tap, was_held = hold(grace=GRACE), Tap(), list[bool]()

    async def work(answer: LoggedStream) -> None:
        await tap(answer)
        was_held.append(held.get("me", answer.id) is answer)

    answer = held.start("me", work)
    await answer.begun()
    with answer.reading():
        await asyncio.sleep(2 * GRACE)
        assert answer.is_running
    await eventually(lambda: not answer.is_running)
    assert was_held == [True]
    await eventually(lambda: held.get("me", answer.id) is None)


async def test_an_answer_of_the_background_goes_on_to_its_end(hold: Hold) -> None:
    held, tap = hold(grace=GRACE), Tap()
    answer = held.start("me", tap, is_background=True)
    await answer.begun()
    held.stop_unread()
    await asyncio.sleep(2 * GRACE)
    assert answer.is_running
    tap.close()
    await eventually(lambda: held.num_streams == 0)


async def test_a_refusal_is_raised_to_the_one_who_waits_and_leaves_nothing(hold: Hold) -> None:
    async def refuse(_answer: LoggedStream) -> None:
        raise ApiError("no", status=429)

    held = hold()
    answer = held.start("me", refuse)
    with pytest.raises(ApiError, match="no"):
        await answer.begun()
    assert held.num_streams == 0


async def test_a_failure_after_the_beginning_is_told_to_every_reader(hold: Hold) -> None:
    async def fail(answer: LoggedStream) -> None:
        answer.begin(lambda: None)
        answer.log.append(b"a")
        raise ValueError("secret")

    answer = hold().start("me", fail)
    await answer.begun()
    for _ in range(2):
        with pytest.raises(ApiError, match="failed to handle this request"):
            await read(answer)


async def test_readers_read_on_when_their_answer_is_forgotten(hold: Hold) -> None:
    held, tap = hold(), Tap()
    answer = held.start("me", tap)
    await answer.begun()
    reader = asyncio.create_task(read(answer))
    tap.events.put_nowait(b"a")
    await eventually(lambda: answer.log.num_events == 1)
    held.forget(answer)
    assert held.get("me", answer.id) is None
    assert await reader == [b"a"]
    assert held.num_bytes == 0


async def test_too_many_readers_are_refused(hold: Hold) -> None:
    answer = hold().start("me", Tap())
    readers = [answer.reading() for _ in range(MAX_READERS)]
    for reader in readers:
        reader.__enter__()
    with pytest.raises(ApiError, match="read this stream already") as caught, answer.reading():
        pass
    assert (caught.value.status, caught.value.code) == (429, "too_many_readers")
    for reader in readers:
        reader.__exit__(None, None, None)


async def test_ended_answers_make_room_and_running_ones_do_not(hold: Hold) -> None:
    held = hold(max_streams=3)
    taps = [Tap() for _ in range(3)]
    one, two, three = (held.start("me", tap) for tap in taps)
    with pytest.raises(ApiError, match="3 answers of 0 bytes are held; the limits are 3 and 1048576") as caught:
        held.start("me", Tap())
    assert (caught.value.status, caught.value.code) == (429, "too_many_held_answers")
    for answer, tap in ((two, taps[1]), (one, taps[0])):
        await answer.begun()
        tap.close()
        await eventually(lambda answer=answer: not answer.is_running)  # type: ignore[misc]
    four = held.start("me", Tap())
    assert [held.get("me", answer.id) for answer in (one, two, three, four)] == [one, None, three, four]
    with one.reading(), pytest.raises(ApiError):
        held.start("me", Tap())


async def test_the_events_of_all_answers_together_are_bounded(hold: Hold) -> None:
    most = 64 << 10
    held = hold(max_bytes=most)
    event = b"x" * 1000
    first, tap = held.start("me", ended := Tap()), Tap()
    await first.begun()
    ended.events.put_nowait(event)
    ended.close()
    await eventually(lambda: not first.is_running)
    running = [held.start("me", tap := Tap()) for _ in range(LOG_SHARE + 2)]
    for answer in running:
        await answer.begun()
        for _ in range(100):
            answer.log.append(event)
            assert held.num_bytes <= most + len(running) * (1000 + EVENT_BYTES)  # each keeps its last event
    assert held.get("me", first.id) is None, "the ended one has made room"
    assert all(answer.log.num_bytes <= most // LOG_SHARE + 1000 + EVENT_BYTES for answer in running)
    assert held.num_bytes > most - most // ROOM_SHARE
    with pytest.raises(ApiError, match="are held"):
        held.start("me", tap)


async def test_a_stop_before_the_beginning_ends_the_work(hold: Hold) -> None:
    async def wait(_answer: LoggedStream) -> None:
        await asyncio.Event().wait()

    held = hold()
    answer = held.start("me", wait)
    await asyncio.sleep(0)
    held.forget(answer)
    await eventually(lambda: not answer.is_running)
    with pytest.raises(ApiError, match="the stream was stopped"):
        await answer.begun()


async def end(answer: LoggedStream, tap: Tap) -> None:
    tap.close()
    await eventually(lambda: not answer.is_running)


async def test_of_what_has_ended_the_owner_with_the_most_gives_way(hold: Hold) -> None:
    held, answers = hold(max_streams=4), []
    for owner in ("few", "many", "many", "many"):
        tap = Tap()
        answers.append(held.start(owner, tap))
        await end(answers[-1], tap)
    held.start("third", Tap())
    assert [held.get(answer.owner, answer.id) is answer for answer in answers] == [True, False, True, True]


async def test_what_nobody_reads_gives_way_to_an_owner_with_less(hold: Hold) -> None:
    held = hold(max_streams=3)
    read, unread, later = (held.start("many", Tap()) for _ in range(3))
    with read.reading():
        held.start("few", Tap())
        assert held.get("many", unread.id) is None
        assert held.get("many", read.id) is read
        with pytest.raises(ApiError, match="3 answers"):  # it would have more than the other then
            held.start("few", Tap())
        with pytest.raises(ApiError, match="3 answers"):
            held.start("many", Tap())
        assert held.get("many", later.id) is later


async def test_what_is_read_or_of_the_background_gives_way_to_nobody(hold: Hold) -> None:
    held = hold(max_streams=3)
    answers = [held.start("many", Tap(), is_background=True) for _ in range(2)]
    answers.append(held.start("many", Tap()))
    with answers[-1].reading(), pytest.raises(ApiError, match="3 answers"):
        held.start("few", Tap())
    assert all(answer.is_running for answer in answers)


class Owner(str):
    """Counts how often it is looked up."""

    num_looks = 0

    def __hash__(self) -> int:
        Owner.num_looks += 1
        return super().__hash__()


async def test_making_room_does_not_look_at_every_answer(hold: Hold) -> None:
    event, num_answers = b"x" * 1000, 100
    held = hold(max_bytes=num_answers * (len(event) + EVENT_BYTES), max_streams=1000)
    for _ in range(7 * num_answers // ROOM_SHARE):
        answer = held.start(Owner("many"), tap := Tap())
        tap.events.put_nowait(event)
        await end(answer, tap)
    writer = held.start("few", Tap())
    Owner.num_looks = 0
    for _ in range(num_answers // 5):
        writer.log.append(event)
    num_forgotten = 7 * num_answers // ROOM_SHARE + 1 - held.num_streams
    assert num_forgotten > 5
    assert Owner.num_looks <= 10 * num_forgotten


async def test_a_failure_that_nobody_foresaw_is_logged_and_its_details_kept_from_the_reader(
    hold: Hold, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: LoggedStream) -> None:
        raise ZeroDivisionError("a secret")

    async def refuse(_: LoggedStream) -> None:
        raise ApiError("no room")

    held = hold()
    for work, told in ((fail, "the server failed"), (refuse, "no room")):
        with pytest.raises(ApiError, match=told):
            await held.start("me", work).begun()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "a secret" in str(record.exc_info[1])
