"""A file of settings that is read again: names, defaults, limits and models change, and no stream is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from engine.interface.types import EngineState
from server.protocol.errors import ApiError
from server.serving import residency
from server.serving.reconfiguration import Reconfiguration
from server.startup.settings import ServerSettings
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.serving.conftest import SeveralServer, StartSeveral

CODER = """
[models.coder]
model = "coder.gguf"
aliases = ["gpt-4o-mini"]
sampling = { temperature = 0.5, top_k = 7 }
chat-template-kwargs = { greeting = "hello" }
"""
POET = """
[models.poet]
model = "coder"
aliases = ["gpt-4o"]
sampling = { temperature = 1.5 }
chat-template-kwargs = { greeting = "ahoy" }
"""
OTHER = '\n[models.other]\nmodel = "other.gguf"\n'
THIRD = '\n[models.third]\nmodel = "third.gguf"\n'
TEMPLATE = "{{ greeting }}:{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def short_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "FOUND_S", 0.01)
    monkeypatch.setattr(residency, "LEAST_STAY_S", 0.02)
    monkeypatch.setattr(residency, "RETRY_S", 0.02)


class File:
    """The file of settings of a server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, content: str) -> None:
        self.path.write_text(content)

    def read(self) -> ServerSettings:
        return ServerSettings.from_sources({"config": str(self.path), "port": "0"}, {})

    async def reload(self, server: SeveralServer, content: str, again: Reconfiguration) -> list[dict[str, Any]]:
        """Reads the file again with other content; returns what was logged."""
        self.write(content)
        with structlog.testing.capture_logs() as logged:
            await again.apply()
        return [dict(event) for event in logged]


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "eagre.toml")


def again(server: SeveralServer, file: File) -> Reconfiguration:
    return Reconfiguration(server.served, file.read, server.loader.check)


def set_template(server: SeveralServer, name: str) -> None:
    """Gives the model a template that shows the variable `greeting`."""
    from tests.fakes.text_model import FakeTextModel

    model = server.served.find(name)
    model._loaded = FakeTextModel(TEMPLATE).model
    model.change(model.settings)


async def test_aliases_and_presets_name_the_model_on_every_route(start_several: StartSeveral, file: File) -> None:
    file.write(CODER + POET + OTHER)
    async with start_several("", whole=file.read()) as server:
        _, listed = await server.get("/v1/models")
        roots = {entry["id"]: entry.get("root") for entry in listed["data"]}
        assert roots == {"coder": None, "other": None, "gpt-4o-mini": "coder", "poet": "coder", "gpt-4o": "coder"}
        shown = {entry["id"]: entry.get("sampling_defaults") for entry in listed["data"]}
        assert shown["gpt-4o-mini"] == shown["coder"] == {"temperature": 0.5, "top_k": 7}
        assert shown["gpt-4o"] == shown["poet"] == {"temperature": 1.5, "top_k": 7}
        _, one = await server.get("/v1/models/gpt-4o")
        assert (one["id"], one["root"]) == ("gpt-4o", "coder")
        set_template(server, "coder")
        engine, messages = server.engine("coder"), [{"role": "user", "content": "x"}]
        for name, temperature, greeting in (
            ("coder", 0.5, "hello"), ("gpt-4o-mini", 0.5, "hello"), ("poet", 1.5, "ahoy"), ("gpt-4o", 1.5, "ahoy"),
        ):  # fmt: skip
            status, body = await server.post("/v1/chat/completions", {"model": name, "messages": messages})
            assert (status, body["model"]) == (200, "coder")
            params = engine.submitted[-1].params
            assert (params.temperature, params.top_k) == (temperature, 7)
            assert body["choices"][0]["message"]["content"] == f"coder:{greeting}:x"
            status, body = await server.post("/v1/messages", {"model": name, "messages": messages, "max_tokens": 5})
            assert (status, body["model"]) == (200, "coder")
            status, body = await server.post("/v1/responses", {"model": name, "input": "x", "store": False})
            assert status == 200
            assert engine.submitted[-1].params.temperature == temperature
            _, body = await server.post("/api/chat", {"model": name, "messages": messages, "stream": False})
            assert engine.submitted[-1].params.temperature == temperature
            _, body = await server.post("/apply-template", {"model": name, "messages": messages})
            assert body["prompt"] == f"{greeting}:x"
            _, body = await server.post("/tokenize", {"model": name, "messages": messages})
            assert body["count"] == len(f"{greeting}:x")
            _, body = await server.post("/v1/messages/count_tokens", {"model": name, "messages": messages})
            assert body["input_tokens"] == len(f"{greeting}:x")
            assert (await server.get(f"/props?model={name}"))[1]["default_generation_settings"]["params"][
                "temperature"
            ] == temperature
            assert (await server.complete(name, temperature=0.25))[0] == 200
            assert engine.submitted[-1].params.temperature == 0.25
        _, tags = await server.get("/api/tags")
        assert [entry["name"] for entry in tags["models"]] == ["coder", "gpt-4o-mini", "poet", "gpt-4o", "other"]
        status, body = await server.complete("gpt-5")
        assert status == 404
        assert '"gpt-4o-mini"' in body["error"]["message"]


async def stream_half(server: SeveralServer, model: str) -> tuple[asyncio.Task[bytes], Callable[[int], None]]:
    """A stream whose engine has computed one token, and what computes more."""
    engine = server.engine(model)
    assert engine._task is not None
    engine._task.cancel()
    body = {"prompt": "abc", "stream": True, "model": model}
    running = asyncio.create_task(server.stream_bytes("/v1/completions", body))
    await eventually(lambda: len(engine.running) == 1)
    engine.step()
    return running, engine.step


async def test_names_and_defaults_change_beneath_running_streams(start_several: StartSeveral, file: File) -> None:
    file.write(CODER)
    async with start_several("", whole=file.read()) as server:
        reconfiguration = again(server, file)
        running, step = await stream_half(server, "coder")
        changed = CODER.replace("gpt-4o-mini", "mini").replace("0.5", "0.75") + "pinned = true\nsleep-idle-seconds = 9"
        logged = await file.reload(server, changed, reconfiguration)
        assert logged[-1] == {
            "event": "config_reloaded", "log_level": "info", "settings": [], "models_changed": ["coder"],
            "models_loaded": [], "models_removed": [],
        }  # fmt: skip
        model = server.served.find("mini")
        assert model.is_pinned
        assert model.idle_sleep is not None
        assert model.idle_sleep.seconds_left is not None
        assert model.sampling_defaults["temperature"] == 0.75
        assert (await server.complete("gpt-4o-mini"))[0] == 404
        step(9)
        assert (await running).endswith(b"data: [DONE]\n\n")
        assert server.sources["coder"].num_loads == 1


async def test_a_model_that_changes_ends_its_streams_and_the_next_requests_have_the_new_one(
    start_several: StartSeveral, file: File
) -> None:
    file.write(CODER + OTHER)
    async with start_several("", whole=file.read()) as server:
        reconfiguration = again(server, file)
        old, old_engine = server.served.find("coder"), server.engine("coder")
        running, step = await stream_half(server, "coder")
        logged = await file.reload(server, CODER.replace("coder.gguf", "new.gguf") + OTHER, reconfiguration)
        assert (logged[-1]["models_loaded"], logged[-1]["models_removed"]) == (["coder"], ["coder"])
        status, body = await server.complete("gpt-4o-mini")
        assert (status, body["choices"][0]["text"]) == (200, "new.gguf:ab")
        assert (await server.complete("other"))[1]["choices"][0]["text"] == "other:ab"
        assert not old_engine.is_shut_down
        await eventually(lambda: server.served.num_generations == 1)
        step(9)
        assert b"coder:" in (text := await running) or text.count(b"data: ") > 5
        assert text.endswith(b"data: [DONE]\n\n")
        await eventually(lambda: old_engine.is_shut_down)
        await eventually(lambda: old not in server.served.with_leaving)
        assert old_engine.lifecycle.state is EngineState.ASLEEP  # its memory was given back
        metrics = await (await server.http.get(server.url + "/metrics")).text()
        assert metrics.count('eagre_num_requests_running{model="coder"}') <= 1


async def test_while_the_engine_of_a_removed_model_ends_the_server_is_alive_and_ready(
    start_several: StartSeveral, file: File
) -> None:
    file.write(CODER + OTHER)
    async with start_several("", whole=file.read()) as server:
        engine, has_begun, may_end = server.engine("coder"), asyncio.Event(), asyncio.Event()

        async def shut_down_slowly() -> None:
            engine.shutdown()
            has_begun.set()
            await may_end.wait()

        engine.shutdown_in_background = shut_down_slowly  # type: ignore[method-assign]
        await file.reload(server, OTHER, again(server, file))
        async with asyncio.timeout(PATIENCE_S):
            await has_begun.wait()
        for path in ("/liveness", "/readiness"):
            assert (await server.get(path))[0] == 200
        may_end.set()


async def test_a_limit_of_one_lets_the_old_model_end_before_the_new_one_comes(
    start_several: StartSeveral, file: File
) -> None:
    file.write("models-max = 1" + CODER)
    async with start_several("", whole=file.read()) as server:
        reconfiguration = again(server, file)
        running, step = await stream_half(server, "coder")
        await file.reload(server, "models-max = 1" + CODER + "max-model-len = 64", reconfiguration)
        waiting = asyncio.create_task(server.complete("coder"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        step(9)
        assert (await running).endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting)[1]["choices"][0]["text"] == "coder.gguf:ab"
        assert (await server.get("/readiness"))[0] == 200


async def test_models_come_and_go(start_several: StartSeveral, file: File) -> None:
    file.write(CODER + OTHER)
    async with start_several("", whole=file.read()) as server:
        reconfiguration = again(server, file)
        other = server.engine("other")
        await file.reload(server, CODER + '\n[models.third]\nmodel = "x"\n', reconfiguration)
        assert server.served.names == ["coder", "third"]
        assert (await server.complete("other"))[0] == 404
        assert (await server.complete("third"))[1]["choices"][0]["text"] == "third:ab"
        await eventually(lambda: other.is_shut_down)
        assert server.sources["coder"].num_loads == 1  # though its share of the memory was another one
        await file.reload(server, OTHER, reconfiguration)
        assert (await server.complete(None))[1]["model"] == "other"


async def test_a_file_that_cannot_be_used_changes_nothing(start_several: StartSeveral, file: File) -> None:
    file.write(CODER)
    async with start_several("", whole=file.read()) as server:
        reconfiguration = again(server, file)
        for content, reason in (
            ("prot = 1", "did you mean port?"),
            ("[models.coder]\nmodel = 3", "[models.coder]: model is 3"),
            ("models-max = 1" + CODER + "pinned = true" + OTHER, "would never have a place"),
        ):
            (event,) = await file.reload(server, content, reconfiguration)
            assert (event["event"], event["log_level"]) == ("config_kept", "error")
            assert reason in event["reason"]
            assert str(file.path) in event["reason"]
        file.path.unlink()
        with structlog.testing.capture_logs() as logged:
            await reconfiguration.apply()
        assert "No such file" in logged[0]["reason"]
        assert (await server.complete("gpt-4o-mini"))[0] == 200


async def test_a_loaded_model_is_not_given_up_for_one_that_turns_out_not_to_load(
    start_several: StartSeveral, file: File
) -> None:
    file.write(CODER + OTHER)
    async with start_several("", whole=file.read()) as server:
        reconfiguration, source = again(server, file), server.sources["coder"]
        source.flaw = ValueError("better.gguf is cut short")
        changed = CODER.replace("coder.gguf", "better.gguf") + OTHER
        (event,) = await file.reload(server, changed, reconfiguration)
        assert (event["event"], event["reason"]) == (
            "config_kept",
            "the model coder could not be loaded: better.gguf is cut short",
        )
        assert (await server.complete("coder"))[0] == 200
        assert (source.num_loads, server.sources["other"].num_checks) == (1, 1)
        assert len(server.served.with_leaving) == 2
        source.flaw = None
        events = await file.reload(server, changed, reconfiguration)
        assert "config_reloaded" in {event["event"] for event in events}
        assert (await server.complete("coder"))[0] == 200
        assert (source.num_loads, server.sources["other"].num_checks) == (2, 1)


async def test_the_end_of_the_server_waits_for_no_file_that_is_read(start_several: StartSeveral, file: File) -> None:
    file.write(CODER)
    async with start_several("", whole=file.read()) as server:
        readers: list[threading.Thread] = []

        def read() -> ServerSettings:  # from a disk that may not answer
            readers.append(threading.current_thread())
            return file.read()

        await Reconfiguration(server.served, read, server.loader.check).apply()
    (reader,) = readers
    assert reader.daemon  # the interpreter, and asyncio.run, wait for all others


async def test_settings_hold_at_once_or_are_named(start_several: StartSeveral, file: File) -> None:
    file.write(CODER)
    async with start_several("", whole=file.read()) as server:
        head = 'shutdown-timeout = 3\nmodels-max = 5\nhost = "0.0.0.0"\nmax-body-bytes = 2048\nnum-hosts = 1\n'
        logged = await file.reload(server, head + CODER, again(server, file))
        assert [event["event"] for event in logged] == ["config_needs_restart", "config_reloaded"]
        assert logged[0]["keys"] == ["host", "max_body_bytes"]
        assert logged[1]["settings"] == ["models_max", "shutdown_timeout"]
        settings = server.served.settings
        assert (settings.shutdown_timeout, settings.host, server.served.residency.limit) == (3.0, "127.0.0.1", 5)
        assert server.sources["coder"].num_loads == 1


async def test_a_model_that_an_administrator_added_stays(start_several: StartSeveral, file: File) -> None:
    file.write(CODER + "sleep-idle-seconds = 900")
    async with start_several("", whole=file.read()) as server:
        reconfiguration = again(server, file)
        added = server.served.add("smollm2-135m-instruct")
        assert (added.table, added.settings.sleep_idle_seconds) == (None, None)  # what a table says is for its model
        await file.reload(server, CODER + OTHER, reconfiguration)
        assert server.sources["coder"].num_loads == 1
        assert server.served.names == ["coder", "other", "smollm2-135m-instruct"]
        named = '\n[models.smollm2-135m-instruct]\nmodel = "x"\n'
        await file.reload(server, CODER + named, reconfiguration)  # the file has its name now
        assert server.served.names == ["coder", "smollm2-135m-instruct"]
        assert server.served.find("smollm2-135m-instruct") is not added


async def test_a_model_that_is_removed_while_another_one_goes_to_sleep_stops_no_load(
    start_several: StartSeveral, file: File
) -> None:
    file.write("models-max = 2" + CODER + OTHER + THIRD)
    async with start_several("", whole=file.read()) as server:
        reconfiguration = again(server, file)
        engine, other = server.engine("coder"), server.engine("other")
        sleep, is_asked, may_sleep = engine.lifecycle.sleep, asyncio.Event(), asyncio.Event()

        async def sleep_late(**options: Any) -> None:
            is_asked.set()
            await may_sleep.wait()
            await sleep(**options)

        engine.lifecycle.sleep = sleep_late
        await file.reload(server, "models-max = 1" + CODER + OTHER + THIRD, reconfiguration)
        waiting = asyncio.create_task(server.complete("third"))  # both others have to go
        await is_asked.wait()
        await file.reload(server, "models-max = 1" + CODER + THIRD, reconfiguration)
        await eventually(lambda: other.is_shut_down and len(server.served.with_leaving) == 2)
        may_sleep.set()
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting)[1]["choices"][0]["text"] == "third:ab"


async def test_models_that_leave_are_ended_with_the_server(start_several: StartSeveral, file: File) -> None:
    file.write(CODER + OTHER)
    async with start_several("", whole=file.read()) as server:
        other = server.engine("other")
        running, _ = await stream_half(server, "other")
        await file.reload(server, CODER, again(server, file))
        server.served.start_draining()
        assert not await server.served.wait_idle(0.01)
        server.served.abort_all()
        assert await server.served.wait_idle(PATIENCE_S)
        assert b'"abort"' in await running
    assert other.is_shut_down


async def test_who_has_found_a_model_that_is_gone_since_is_told(start_several: StartSeveral, file: File) -> None:
    file.write(CODER + OTHER)
    async with start_several("", whole=file.read()) as server:
        found = server.served.find("other")
        await file.reload(server, CODER, again(server, file))
        await eventually(lambda: found not in server.served.with_leaving)
        use = server.served.residency.use(found)
        with pytest.raises(ApiError, match="was just replaced or removed") as refusal, use:
            pass
        assert refusal.value.status == 503


async def test_without_a_table_no_defaults_of_one_hold(start_several: StartSeveral, file: File) -> None:
    file.write(CODER)
    async with start_several("", whole=file.read()) as server:
        model = server.served.find("coder")
        assert model.sampling_defaults == {"temperature": 0.5, "top_k": 7}
        await file.reload(server, 'model = "coder=coder.gguf"', again(server, file))
        assert server.served.find("coder") is model
        assert (model.sampling_defaults, model.further_names) == ({}, ())
