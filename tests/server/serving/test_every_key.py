"""Every key of a file of settings that is read again while a stream runs: it holds, needs a restart, or is refused."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import structlog

from engine.interface.setting import Setting
from server.serving import residency
from server.serving.reconfiguration import Reconfiguration
from server.startup.config_file import MODEL_SETTINGS, SAMPLING
from server.startup.settings import ServerSettings
from tests.server.conftest import eventually
from tests.server.serving.conftest import SeveralServer, StartSeveral

# What a key may have where no number or word will do; and what else stands in the file then.
VALUES: dict[str, Any] = {
    "host": "0.0.0.0",
    "api_key": ["a-key-of-some-length"],
    "admin_key": ["a-key-of-some-length"],
    "trusted_proxies": ["10.0.0.0/8"],
    "playground_peers": ["http://a.example"],
    "default_chat_template_kwargs": {"a": 1},
    "mm_processor_kwargs": '{"max_pixels": 1003520}',
    "prefix_cache_peers": ["127.0.0.1:9"],
    "kv_events": "tcp://127.0.0.1:7777",
    "lora": [],
    "front_key": "a-key-of-some-length",
    "api_prefix": "/x",
    "apis": ["openai"],
    # Files that are there; nobody reads them here.
    "chat_template": __file__,
    "mmproj": __file__,
}
TOGETHER: dict[str, dict[str, Any]] = {
    "ssl_certfile": {"ssl_keyfile": "x"},
    "ssl_keyfile": {"ssl_certfile": "x"},
    "inspect_requests": {"admin_key": ["a-key-of-some-length"]},
}
CANDIDATES: dict[type, list[Any]] = {
    bool: [True],
    int: [2, 4, 100, 4096, 1 << 22, 9000],
    float: [0.5, 7.5],
    str: ["127.0.0.1:9", "a-key-of-some-length", "word"],
    tuple: [["word"], ["127.0.0.1:9"]],
}


def another(setting: Setting) -> Any:
    """A value that the key may have and does not have by itself, as TOML has it."""
    if setting.key in VALUES:
        return VALUES[setting.key]
    choices = setting.limit.choices if setting.limit is not None else ()
    for value in (*choices, *CANDIDATES[setting.kind]):
        own = tuple(value) if isinstance(value, list) else value
        if setting.from_key(own) != setting.default and setting.problem(own) is None:
            return value
    raise AssertionError(f"no value for {setting.key}")


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(own)}" for key, own in value.items()) + " }"
    return json.dumps(value)


def lines(values: dict[str, Any]) -> str:
    return "".join(f"{key.replace('_', '-')} = {toml(value)}\n" for key, value in values.items())


SETTINGS = {setting.key: setting for setting in ServerSettings.declared() if setting.key not in ("config", "model")}
OF_TABLES: dict[str, Any] = {
    "aliases": ["an-alias"], "pinned": True, "chat_template_kwargs": {"a": 1}, "lora": [],
    **{key: another(SETTINGS[key]) for key in sorted(MODEL_SETTINGS)},
}  # fmt: skip
TABLE = '[models.coder]\nmodel = "coder.gguf"\n'
EVENTS = {"config_reloaded", "config_needs_restart", "config_kept"}


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_a_wrong_value_of_any_key_is_refused_by_name(tmp_path: Path, key: str) -> None:
    path, shown = tmp_path / "eagre.toml", key.replace("_", "-")
    for content, where in (
        (lines({key: [1]}) + TABLE, str(path)),
        (TABLE + lines({key: [1]}), f"{path}, [models.coder]"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=shown) as refusal:
            ServerSettings.from_sources({"config": str(path)}, {})
        assert str(refusal.value).startswith(where + ":")


async def test_every_key_may_change_while_a_stream_runs(
    start_several: StartSeveral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "FOUND_S", 0.0)
    monkeypatch.setattr(residency, "LEAST_STAY_S", 0.0)
    path = tmp_path / "eagre.toml"

    def read() -> ServerSettings:
        return ServerSettings.from_sources({"config": str(path), "port": "0"}, {})

    path.write_text(TABLE)
    async with start_several("", whole=read()) as server:
        again, (running, step) = Reconfiguration(server.served, read, server.loader.check), await begin(server)

        async def reload(content: str) -> dict[str, Any]:
            path.write_text(content)
            with structlog.testing.capture_logs() as logged:
                await again.apply()
            return {event["event"]: event for event in logged if event["event"] in EVENTS}

        for key, setting in SETTINGS.items():
            if key in ("port", "lora", "log_level"):  # a flag of this test, files, and what this test listens to
                continue
            told = await reload(lines({**TOGETHER.get(key, {}), key: another(setting)}) + TABLE)
            if refusal := told.get("config_kept"):
                assert str(path) in refusal["reason"]
                assert re.search(key.replace("_", "[-_]"), refusal["reason"]), refusal
                continue
            named = {*told["config_reloaded"]["settings"], *told.get("config_needs_restart", {}).get("keys", ())}
            assert setting.name in named, key
        for key, value in OF_TABLES.items():
            told = await reload(TABLE + lines({key: value}))
            assert set(told) == {"config_reloaded"}, told
        for name in SAMPLING:
            told = await reload(TABLE + f"sampling = {{ {name} = 1 }}\n")
            assert set(told) == {"config_reloaded"}, told
        await reload(TABLE)
        assert (await server.complete("coder"))[0] == 200
        step(9)
        assert (await running).endswith(b"data: [DONE]\n\n")


async def begin(server: SeveralServer) -> tuple[asyncio.Task[bytes], Any]:
    """A stream whose engine has computed one token, and what computes more."""
    engine = server.engine("coder")
    assert engine._task is not None
    engine._task.cancel()
    body = {"prompt": "abc", "stream": True, "model": "coder"}
    running = asyncio.create_task(server.stream_bytes("/v1/completions", body))
    await eventually(lambda: len(engine.running) == 1)
    engine.step()
    return running, engine.step
