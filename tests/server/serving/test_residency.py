"""Which models are in memory, and how requests wait for one that is not."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.interface.background import CALM_NICE, is_narrow_here
from engine.interface.types import EngineError, Progress
from server.cli.model_loader import ModelLoader
from server.protocol.errors import ApiError
from server.serving import residency
from server.serving.residency import PlannedLoad
from server.serving.served_model import ServedModel
from server.startup.model_loader import LoadedModel
from server.startup.progress import silent
from server.startup.settings import ServerSettings
from tests.fakes.model_plan import planning
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.serving.conftest import SeveralServer, StartSeveral
from tests.server.support.resumable import Follower
from tests.server.support.socket_client import open_socket, read_to_end, send


@pytest.fixture(autouse=True)
def short_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "LEAST_STAY_S", 0.02)
    monkeypatch.setattr(residency, "RETRY_S", 0.02)


def text_of(answer: tuple[int, dict]) -> str:
    status, body = answer
    assert status == 200, body
    return body["choices"][0]["text"]


async def test_a_request_loads_a_model_and_the_one_used_longest_ago_makes_room(start_several: StartSeveral) -> None:
    async with start_several("one two three", models_max=2) as server:
        assert server.in_memory == ["one", "two"]
        assert text_of(await server.complete("one")) == "one:ab"
        assert text_of(await server.complete("three")) == "three:ab"
        assert server.in_memory == ["one", "three"]
        assert server.states()["two"] == "asleep"
        assert text_of(await server.complete("two")) == "two:ab"  # it is woken, not loaded anew
        assert server.in_memory == ["two", "three"]
        assert server.engine("two").lifecycle.calls == ["forget", "wake"]
        assert [source.num_loads for source in server.sources.values()] == [1, 1, 1]


async def test_no_model_goes_for_one_that_a_check_refuses(start_several: StartSeveral) -> None:
    """Neither where it would be loaded, nor where it would be woken."""
    async with start_several("one two", models_max=1) as server:
        two, one = server.sources["two"], server.engine("one").lifecycle
        assert text_of(await server.complete("two")) == "two:ab"
        assert text_of(await server.complete("one")) == "one:ab"
        calls = list(one.calls)
        two.engine.lifecycle.flaw = ValueError("the file was cut meanwhile")
        status, body = await server.complete("two")
        assert (status, body["error"]["message"]) == (503, "the model cannot be loaded: the file was cut meanwhile")
        assert (server.states(), one.calls) == ({"one": "ready", "two": "failed"}, calls)
        two.engine.lifecycle.flaw = None
        assert text_of(await server.complete("two")) == "two:ab"
    async with start_several("one two", models_max=1) as server:
        two = server.sources["two"]
        two.flaw = ValueError("it has no tokenizer")
        assert (await server.complete("two"))[1]["error"]["message"] == (
            "the model two cannot be loaded: it has no tokenizer"
        )
        assert (server.states(), two.num_loads) == ({"one": "ready", "two": "failed"}, 0)
        assert server.engine("one").lifecycle.calls == []
        two.flaw = None
        assert text_of(await server.complete("two")) == "two:ab"


async def test_nothing_is_kept_of_a_plan_whose_model_has_come_or_failed(
    start_several: StartSeveral, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_several("one two three", models_max=1) as server:
        plan, kept = server.loader.plan, weakref.WeakSet[Any]()

        async def noted(model: ServedModel) -> PlannedLoad:
            planned = await plan(model)
            bring = partial(planned.bring)  # it has the files of the model open
            kept.add(bring)
            return planned._replace(bring=bring)

        monkeypatch.setattr(server.loader, "plan", noted)
        assert text_of(await server.complete("two")) == "two:ab"
        await eventually(lambda: not kept)
        server.sources["three"].error = ValueError("it was cut after all")
        assert (await server.complete("three"))[0] == 503
        server.sources["three"].error = None  # its traceback has the frames that it has come through
        await eventually(lambda: not kept)


async def test_a_load_is_narrow_beside_models_that_run_and_not_beside_those_that_sleep(
    start_several: StartSeveral,
) -> None:
    async with start_several("one two three", models_max=2) as server:
        found: list[tuple[bool, int]] = []

        def load(settings: ServerSettings, progress: Progress) -> LoadedModel:
            found.append((is_narrow_here(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
            raise ValueError("it was noted")

        three = server.served.find("three")
        loader = ModelLoader(server.served, planning(load), silent)
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        calm = max(CALM_NICE, usual) if sys.platform == "linux" else usual
        one, two = (server.engine(name).lifecycle for name in ("one", "two"))
        for change in (one.sleep(), two.pause(), two.resume()):
            with pytest.raises(ValueError, match="noted"):
                await (await loader.plan(three)).bring()
            await change
        with pytest.raises(ValueError, match="noted"):
            await (await loader.plan(three)).bring()
        # Both run, then one sleeps and one runs, then that one is paused, and then it runs again.
        assert found == [(True, calm), (True, calm), (False, calm), (True, calm)]


async def test_a_wake_and_an_update_are_told_whether_other_models_run(start_several: StartSeveral) -> None:
    key = "a-key-of-an-operator"

    async def update(server: SeveralServer, model: str) -> None:
        headers, body = {"Authorization": f"Bearer {key}"}, {"path": "x.gguf", "model": model}
        async with server.http.post(f"{server.url}/admin/update_weights", headers=headers, json=body) as response:
            assert response.status == 200

    for models_max, is_beside_others in ((1, False), (2, True)):
        async with start_several("one two three", models_max=models_max, admin_keys=(key,)) as server:
            for name in ("three", "two", "one"):
                await server.complete(name)
            await server.reach(three="asleep", one="ready")
            lifecycle = server.engine("one").lifecycle
            assert lifecycle.calls == ["forget", "wake"]
            await update(server, "one")
            assert lifecycle.beside_others == [is_beside_others] * 2


@pytest.mark.parametrize(
    ("path", "body", "shown"),
    [
        ("/models/unload", {"model": "one"}, {"success": True}),
        ("/api/generate", {"model": "one", "keep_alive": 0}, {"done_reason": "unload"}),
        ("/api/chat", {"model": "one", "messages": [], "keep_alive": "0s"}, {"done_reason": "unload"}),
    ],
)
async def test_an_administrator_takes_a_model_out_of_memory_until_it_is_wanted(
    start_several: StartSeveral, path: str, body: dict[str, Any], shown: dict[str, Any]
) -> None:
    key = "a-key-of-an-operator"
    async with start_several("one two", admin_keys=(key,)) as server:
        await server.reach(one="ready", two="ready")
        headers = {"Authorization": f"Bearer {key}"}
        for _ in range(2):  # the second time it is not in memory
            async with server.http.post(server.url + path, headers=headers, json=body) as response:
                answer = await response.json()
            assert response.status == 200
            assert "X-Eagre-Ignored" not in response.headers
            assert answer.items() >= shown.items()
            assert server.in_memory == ["two"]
        assert text_of(await server.complete("one")) == "one:ab"
        assert server.in_memory == ["one", "two"]
        assert server.engine("one").lifecycle.calls == ["forget", "wake"]


async def test_a_model_in_use_is_not_taken_out_of_memory(start_several: StartSeveral) -> None:
    async with start_several("one two") as server:
        await server.reach(one="ready", two="ready")
        model = server.served.find("one")
        with server.served.residency.use(model), pytest.raises(ApiError, match="in use") as refusal:
            await server.served.residency.unload(model)
        assert refusal.value.status == 409
        assert server.in_memory == ["one", "two"]
        assert text_of(await server.complete("one")) == "one:ab"


async def test_a_stream_pings_until_its_model_is_loaded(start_several: StartSeveral) -> None:
    async with start_several("one two", models_max=1, ping_interval=0.02) as server:
        server.sources["two"].may_load.clear()
        body = {"prompt": "ab", "stream": True, "model": "two"}
        async with server.http.post(server.url + "/v1/completions", json=body) as response:
            assert response.status == 200
            received = b""
            while received.count(b": ping") < 3:
                received += await response.content.readany()
            assert b"data:" not in received
            assert server.states()["two"] == "loading"
            server.sources["two"].may_load.set()
            rest = await response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert server.engine("one").lifecycle.calls == ["forget"]


async def test_requests_that_wait_for_a_model_leave_room_for_those_of_others(start_several: StartSeveral) -> None:
    async with start_several("one two", models_max=2, loads_at_once=False, max_preparing_requests=4) as server:
        server.sources["one"].may_load.set()
        await server.reach(one="ready", two="loading")
        waiting = [asyncio.create_task(server.complete("two"))]
        embedding = {"model": "two", "input": "ab"}
        waiting.append(asyncio.create_task(server.post("/v1/embeddings", embedding)))
        preparation = server.served.admission_budget
        await eventually(lambda: preparation.num_requests == 2)
        asked = {"model": "two", "prompt": "ab", "stream": True}
        for path, body in (
            ("/v1/completions", asked),
            ("/v1/completions", {**asked, "stream": False}),
            ("/v1/completions", {**asked, "resumable": True}),
            ("/v1/responses", {"model": "two", "input": "ab", "stream": True}),
            ("/v1/responses", {"model": "two", "input": "ab", "background": True}),
            ("/v1/embeddings", embedding),
        ):
            status, answer = await server.post(path, body)
            assert (status, answer["error"]["code"]) == (429, "too_much_in_preparation")
            assert answer["error"]["message"] == "2 requests wait for a model to be loaded; the limit is 2"
        assert text_of(await server.complete("one")) == "one:ab"
        server.sources["two"].may_load.set()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]
        assert text_of(await server.complete("two")) == "two:ab"


async def test_a_stream_of_an_earlier_process_waits_for_its_model_however_many_others_do(
    start_several: StartSeveral, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    async with start_several("one two", models_max=2, store=store) as server:
        follower = Follower(server)
        await follower.begin("/v1/completions", {"model": "two", "prompt": "abc"}, 1)
        await server.served.streams.close()
        await server.served.store.close()
    settings: dict[str, Any] = {"models_max": 2, "loads_at_once": False, "max_preparing_requests": 2}
    async with start_several("one two", store=store, **settings) as server:
        server.sources["one"].may_load.set()
        await server.reach(one="ready", two="loading")
        requests = server.served.requests
        waiting = asyncio.create_task(server.complete("two"))
        await eventually(lambda: requests.num_requests == 1)
        assert (await server.complete("two"))[0] == 429
        follower.server = server
        going_on = asyncio.create_task(follower.go_on())
        await eventually(lambda: requests.num_requests == 2 or going_on.done())
        server.sources["two"].may_load.set()
        await going_on
        assert (follower.text(), follower.is_done) == ("two:abc", True)
        assert text_of(await waiting) == "two:ab"
        await server.served.streams.close()
        await server.served.store.close()


async def test_a_socket_waits_for_one_model_and_streams_from_another(start_several: StartSeveral) -> None:
    async with start_several("one two three", models_max=2) as server:
        server.sources["three"].may_load.clear()
        async with open_socket(server) as socket:
            await send(socket, type="generate", id="late", model="three", prompt="ab")
            await server.reach(three="loading")
            await send(socket, type="generate", id="now", model="two", prompt="ab")
            assert (await read_to_end(socket, "now"))[-1]["type"] == "done"
            server.sources["three"].may_load.set()
            assert (await read_to_end(socket, "late"))[-1]["type"] == "done"


async def test_two_requests_for_two_absent_models_are_answered_one_after_the_other(
    start_several: StartSeveral,
) -> None:
    async with start_several("one two three", models_max=1) as server:
        answers = await asyncio.gather(*(server.complete(name) for name in ("two", "three", "one", "two", "three")))
        assert [text_of(answer) for answer in answers] == ["two:ab", "three:ab", "one:ab", "two:ab", "three:ab"]
        assert len(server.in_memory) == 1


async def test_what_has_begun_comes_to_its_end_before_its_model_sleeps(start_several: StartSeveral) -> None:
    async with start_several("one two", models_max=1) as server:
        busy = server.engine("one")
        busy.is_manual = True
        busy._task.cancel()  # type: ignore[union-attr]
        running = asyncio.create_task(server.complete("one", "abc"))
        await eventually(lambda: len(busy.running) == 1)
        busy.step()
        waiting = asyncio.create_task(server.complete("two"))
        await asyncio.sleep(0.1)
        assert server.in_memory == ["one"]
        assert not waiting.done()
        busy.step(9)
        assert text_of(await running) == "one:abc"
        assert text_of(await waiting) == "two:ab"
        assert server.in_memory == ["two"]


async def test_a_model_stays_where_nobody_waits_for_the_other_any_more(start_several: StartSeveral) -> None:
    async with start_several("one two", models_max=1) as server:
        busy = server.engine("one")
        busy._task.cancel()  # type: ignore[union-attr]
        running = asyncio.create_task(server.complete("one", "abc"))
        await eventually(lambda: len(busy.running) == 1)
        busy.step()
        waiting = asyncio.create_task(server.complete("two"))
        await eventually(lambda: num_users(server, "two") == 1)
        await asyncio.sleep(0.1)
        waiting.cancel()
        await eventually(lambda: num_users(server, "two") == 0)
        busy.step(9)
        assert text_of(await running) == "one:abc"
        await asyncio.sleep(0.05)
        assert server.in_memory == ["one"]
        assert busy.lifecycle.calls == []


async def test_a_paused_model_keeps_its_place(start_several: StartSeveral) -> None:
    async with start_several("one two three", models_max=2) as server:
        await server.engine("one").lifecycle.pause()
        assert text_of(await server.complete("three")) == "three:ab"
        assert server.in_memory == ["one", "three"]


async def test_a_model_that_cannot_be_loaded_disturbs_no_other_and_is_tried_again(
    start_several: StartSeveral,
) -> None:
    async with start_several("one two", loads_at_once=False) as server:
        server.sources["two"].error = ValueError("x is no GGUF file")
        for source in server.sources.values():
            source.may_load.set()
        await server.reach(one="ready", two="failed")
        status, body = await server.complete("two")
        assert (status, body["error"]["code"], body["error"]["param"]) == (503, "model_not_loaded", "model")
        assert body["error"]["message"] == "the model two cannot be loaded: x is no GGUF file"
        stream = await server.stream_bytes("/v1/completions", {"prompt": "ab", "model": "two"})
        assert stream.count(b"x is no GGUF file") == 1
        assert (await server.get("/v1/models/two"))[1]["error"] == "x is no GGUF file"
        assert text_of(await server.complete("one")) == "one:ab"
        server.sources["two"].error = None
        assert text_of(await server.complete("two")) == "two:ab"


async def test_where_the_models_of_the_start_fail_the_next_one_is_served(start_several: StartSeveral) -> None:
    async with start_several("bad worse good", models_max=1, loads_at_once=False) as server:
        for name, source in server.sources.items():
            source.error = None if name == "good" else ValueError(f"{name} is no GGUF file")
            source.may_load.set()
        loader = ModelLoader(server.served, lambda settings, progress: pytest.fail("it was loaded twice"), silent)
        assert await loader.load_first()
        assert server.states() == {"bad": "failed", "worse": "failed", "good": "ready"}
        assert text_of(await server.complete("good")) == "good:ab"


async def test_a_model_that_cannot_be_woken_tells_those_in_its_queue_and_is_tried_again(
    start_several: StartSeveral,
) -> None:
    async with start_several("one two", models_max=1) as server:
        await server.complete("two")
        server.engine("one").lifecycle.error = OSError("the file is gone")
        status, body = await server.complete("one")
        assert (status, body["error"]["message"]) == (503, "the model cannot be loaded: the file is gone")
        assert text_of(await server.complete("one")) == "one:ab"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_wait_ends_with_the_time_of_the_request(start_several: StartSeveral, is_streamed: bool) -> None:
    async with start_several("one two", models_max=1) as server:
        server.sources["two"].may_load.clear()
        body = {"prompt": "ab", "model": "two", "timeout": 0.05}
        if is_streamed:
            assert b'"code":"timeout"' in await server.stream_bytes("/v1/completions", body)
        else:
            status, answer = await server.post("/v1/completions", body)
            assert (status, answer["error"]["code"]) == (504, "timeout")
        server.sources["two"].may_load.set()


async def test_a_request_that_waits_for_its_model_can_be_cancelled(start_several: StartSeveral) -> None:
    async with start_several("one two", models_max=1) as server:
        server.sources["two"].may_load.clear()
        asking = asyncio.create_task(server.complete("two", request_id="mine"))
        await server.reach(two="loading")
        assert (await server.post("/v1/requests/mine/cancel", {}))[1]["cancelled"] is True
        status, body = await asking
        assert (status, body["error"]["code"]) == (409, "cancelled")
        server.sources["two"].may_load.set()
        assert text_of(await server.complete("two")) == "two:ab"


async def test_who_waits_for_a_model_is_told_that_the_server_ends(start_several: StartSeveral) -> None:
    async with start_several("one two", models_max=1) as server:
        server.sources["two"].may_load.clear()
        whole = asyncio.create_task(server.complete("two"))
        stream = asyncio.create_task(server.stream_bytes("/v1/completions", {"prompt": "ab", "model": "two"}))
        await server.reach(two="loading")
        await eventually(lambda: num_users(server, "two") == 2)
        server.served.start_draining()
        status, body = await whole
        assert (status, body["error"]["code"]) == (503, "draining")
        assert b'"code":"draining"' in await stream
        server.sources["two"].may_load.set()


async def test_nobody_starves(start_several: StartSeveral) -> None:
    """Clients of three models, of which one fits, all come to their answers."""
    async with start_several("one two three", models_max=1) as server:

        async def client(name: str) -> list[str]:
            return [text_of(await server.complete(name)) for _ in range(4)]

        names = ["one", "two", "three"] * 2
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*map(client, names))
        assert answers == [[f"{name}:ab"] * 4 for name in names]
        await _is_settled(server)


def num_users(server: SeveralServer, name: str) -> int:
    """How many requests wait for a model, or use it."""
    (place,) = (place for model, place in server.served.residency._places.items() if model.model_name == name)
    return place.num_users


async def _is_settled(server: SeveralServer) -> None:
    await eventually(lambda: len(server.in_memory) == 1 and "loading" not in server.states().values())


async def test_an_idle_model_that_need_not_leave_after_all_is_woken_by_its_next_request(
    start_several: StartSeveral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "RETRY_S", 10 * PATIENCE_S)
    async with start_several("one two", models_max=1, sleep_idle_seconds=0.05) as server:
        await server.reach(one="asleep")
        lifecycle = server.engine("one").lifecycle
        lifecycle.error = EngineError("not now")
        leaving = asyncio.create_task(server.complete("two"))
        await eventually(lambda: "forget" in lifecycle.calls and lifecycle.error is None)
        leaving.cancel()
        async with asyncio.timeout(PATIENCE_S):
            assert text_of(await server.complete("one")) == "one:ab"
        assert lifecycle.calls[:3] == [("sleep", False), "forget", "wake"]  # and then it may sleep again


@pytest.mark.parametrize("sleep_idle_seconds", [None, 1000.0])
async def test_a_model_whose_sleep_fails_half_way_is_woken_by_its_next_request(
    start_several: StartSeveral, monkeypatch: pytest.MonkeyPatch, sleep_idle_seconds: float | None
) -> None:
    monkeypatch.setattr(residency, "RETRY_S", 10 * PATIENCE_S)
    async with start_several("one two", models_max=1, sleep_idle_seconds=sleep_idle_seconds) as server:
        lifecycle = server.engine("one").lifecycle
        lifecycle.error, lifecycle.fails_half_way = EngineError("not now"), True
        leaving = asyncio.create_task(server.complete("two"))
        await eventually(lambda: lifecycle.error is None)
        assert server.states()["one"] == "asleep"
        assert server.in_memory == ["one"]
        async with asyncio.timeout(PATIENCE_S):
            assert text_of(await server.complete("one")) == "one:ab"
        assert lifecycle.calls == ["forget", "wake"]
        leaving.cancel()
