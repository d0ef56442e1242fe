"""Models share a memory by their bytes: what must go so that one fits, pinned ones never."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.interface.types import MachineMemory
from server.serving import residency
from server.serving.eviction import Uses
from server.startup.model_sizes import ModelBytes
from server.startup.settings import ServerSettings
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.serving.conftest import StartSeveral


@pytest.fixture(autouse=True)
def short_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "LEAST_STAY_S", 0.02)
    monkeypatch.setattr(residency, "RETRY_S", 0.02)


@dataclass
class Sizes:
    """The bytes of models by the `model` of their settings."""

    of_models: dict[str, int]
    free: int = 0
    total: int = 1 << 40

    def bytes_of(self, settings: ServerSettings) -> ModelBytes:
        return ModelBytes(self.of_models[settings.model], self.of_models[settings.model])

    def memory(self) -> MachineMemory:
        return MachineMemory(self.total, self.free, self.free)


def tables(path: Path, head: str, *names: str, **further: str) -> ServerSettings:
    content = head + "".join(f'\n[models.{name}]\nmodel = "{name}.gguf"\n{further.get(name, "")}' for name in names)
    path.write_text(content)
    return ServerSettings.from_sources({"config": str(path), "port": "0"}, {})


async def test_as_many_models_go_as_must_and_pinned_ones_never(start_several: StartSeveral, tmp_path: Path) -> None:
    sizes = Sizes({"a.gguf": 3, "b.gguf": 3, "c.gguf": 3, "large.gguf": 6, "huge.gguf": 8})
    names = ("a", "b", "c", "large", "huge")
    whole = tables(tmp_path / "eagre.toml", "models-max-bytes = 10", *names, a="pinned = true")
    async with start_several("", whole=whole, sizes=sizes) as server:
        await eventually(lambda: server.in_memory == ["a", "b", "c"])  # no more fit, and nobody waits for others
        await server.reach(large="unloaded", huge="failed")
        assert (await server.complete("b"))[0] == 200
        assert (await server.complete("large"))[0] == 200
        assert server.in_memory == ["a", "large"]
        assert (await server.complete("c"))[0] == 200
        assert server.in_memory == ["a", "c"]
        assert (await server.complete("b"))[0] == 200
        assert server.in_memory == ["a", "b", "c"]
        status, body = await server.complete("huge")
        assert (status, body["error"]["code"]) == (503, "model_not_loaded")
        assert body["error"]["message"] == (
            "the model huge cannot be loaded: it takes about 8 bytes, weights and cache, and pinned models take 3; "
            "models_max_bytes is 10"
        )
        assert server.in_memory == ["a", "b", "c"]
        assert server.engine("a").lifecycle.calls == []


async def test_without_a_limit_models_go_where_the_machine_has_no_memory_for_another(
    start_several: StartSeveral,
) -> None:
    sizes = Sizes({"x": 5}, free=20)
    async with start_several("one two three", sizes=sizes) as server:
        await eventually(lambda: server.in_memory == ["one", "two", "three"])
        lifecycle = server.engine("one").lifecycle
        await server.served.residency.unload(server.served.find("one"))
        sizes.free = 4
        assert (await server.complete("two"))[0] == 200
        assert (await server.complete("one"))[0] == 200
        assert server.in_memory == ["one", "two"]
        assert lifecycle.calls == ["forget", "wake"]
        await eventually(lambda: server.served.requests.num_requests == 0)
        await server.served.residency.unload(server.served.find("one"))
        await server.engine("two").lifecycle.pause()
        assert (await server.complete("one"))[0] == 200  # no other model can go, so it is tried


async def test_a_model_larger_than_the_machine_makes_no_other_one_go(
    start_several: StartSeveral, tmp_path: Path
) -> None:
    sizes = Sizes({"a.gguf": 3, "b.gguf": 3, "huge.gguf": 8, "large.gguf": 5}, free=4, total=10)
    whole = tables(tmp_path / "eagre.toml", "", "a", "b", "huge", "large", a="pinned = true")
    async with start_several("", whole=whole, sizes=sizes) as server:
        await eventually(lambda: server.in_memory == ["a", "b"])
        await server.reach(huge="failed")  # though nobody asks for it
        status, body = await server.complete("huge")
        assert (status, body["error"]["code"]) == (503, "model_not_loaded")
        assert body["error"]["message"] == (
            "the model huge cannot be loaded: it takes about 8 bytes, weights and cache, and pinned models take 3; the "
            "machine has 10"
        )
        assert server.engine("b").lifecycle.calls == []
        assert server.sources["huge"].num_loads == 0
        assert (await server.complete("large"))[0] == 200
        assert server.in_memory == ["a", "large"]


async def test_the_place_in_the_queue_of_loads_is_told(start_several: StartSeveral) -> None:
    async with start_several("one two three", models_max=1) as server:
        server.sources["two"].may_load.clear()
        two = asyncio.create_task(server.complete("two"))
        await server.reach(two="loading")
        body: dict[str, Any] = {"model": "three", "prompt": "ab", "stream": True, "return_progress": True}
        async with server.http.post(server.url + "/v1/completions", json=body) as response:
            received = b""
            async with asyncio.timeout(PATIENCE_S):
                while b"behind 1 other model" not in received:
                    received += await response.content.readany()
            server.sources["two"].may_load.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert (await two)[0] == 200


async def test_many_requests_for_five_models_in_a_memory_for_two(start_several: StartSeveral, tmp_path: Path) -> None:
    """None fails, and models come into memory less often than if the one used the longest ago went each time."""
    bytes_of = {"a.gguf": 4, "b.gguf": 3, "c.gguf": 5, "d.gguf": 2, "e.gguf": 4}
    names, memory = "abcde", 9
    whole = tables(tmp_path / "eagre.toml", f"models-max-bytes = {memory}", *names)
    requests = random.Random(45).choices(names, k=500)
    async with start_several("", whole=whole, sizes=Sizes(bytes_of)) as server:
        await eventually(lambda: server.in_memory == ["a", "b", "d"])  # all that fit beside each other
        waiting = iter(requests)

        async def client() -> None:
            for name in waiting:
                status, body = await server.complete(name)
                assert (status, body["choices"][0]["text"]) == (200, f"{name}:ab")
                assert sum(bytes_of[f"{each}.gguf"] for each in server.in_memory) <= memory

        async with asyncio.timeout(4 * PATIENCE_S):
            await asyncio.gather(*(client() for _ in range(8)))
        engines = [source.engine for source in server.sources.values()]
        num_loads = sum(source.num_loads for source in server.sources.values())
        num_loads += sum(engine.lifecycle.calls.count("wake") for engine in engines)
    present, by_order_of_use = list[str](), 0
    for name in requests:
        by_order_of_use += name not in present
        present = [*(each for each in present if each != name), name]
        while sum(bytes_of[f"{each}.gguf"] for each in present) > memory:
            present.pop(0)
    assert num_loads < 0.8 * by_order_of_use


def test_uses_of_models_that_are_gone_are_forgotten() -> None:
    uses = Uses[str]()
    uses.count("one")
    uses.forget("one")
    assert uses.of("one") == 0
