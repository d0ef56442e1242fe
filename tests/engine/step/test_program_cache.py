"""Programs that are kept ready to run: found by the same engine alone, and never in the way of a start."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.step.compiled import CompiledPrograms
from engine.step.program_cache import ProgramCache, ProgramTrees, environment
from engine.step.programs import StepPrograms
from engine.step.shapes import StepShape
from sampling.host.params import SamplingParams
from server.startup.progress import silent
from tests.golden.tiny_llama import CONFIG
from tests.model_folders import write_folder
from tests.patience import PATIENCE_S

KEYS = ("double", ("pair", 2), "more")


def trees_of(key: Any) -> ProgramTrees:
    return ProgramTrees((0,), (0, {"more": 0}) if key == ("pair", 2) else 0)


def compiled(folder: Path, fingerprint: str = "tiny", *, trees=trees_of) -> tuple[CompiledPrograms, list[Any]]:
    """The programs as a start of the engine makes them, and the keys of those that are lowered, also later."""
    functions = {"double": lambda x: x * 2, ("pair", 2): lambda x: (x + 1, {"more": x - 1}), "more": lambda x: x + 3}
    lowered: list[Any] = []

    def lower(key: Any) -> Any:
        lowered.append(key)
        return jax.jit(functions[key]).lower(jax.ShapeDtypeStruct((2,), jnp.float32))

    programs = CompiledPrograms()
    lowerings = {key: lambda key=key: lower(key) for key in KEYS}
    programs.compile(lowerings, silent, ProgramCache(folder, fingerprint, trees))
    return programs, lowered


def wait_for_loads() -> None:
    """Returns once no thread loads programs any more."""
    for thread in threading.enumerate():
        if thread.name == "eagre-programs":
            thread.join()


def kept_file(folder: Path) -> Path:
    (path,) = [path for path in folder.rglob("*") if path.is_file()]
    return path


@pytest.mark.parametrize("mode", [0o666, 0o777])
def test_programs_that_others_can_write_are_not_loaded_but_compiled(tmp_path, caplog, mode):
    compiled(tmp_path)
    path = kept_file(tmp_path)
    (path if mode == 0o666 else path.parent).chmod(mode)
    programs, lowered = compiled(tmp_path)
    assert sorted(lowered, key=str) == sorted(KEYS, key=str)
    assert programs["double"](jnp.array([1.0, 5.0])).tolist() == [2, 10]
    assert caplog.text.count("compiled programs are not read, because they may run code") == 1
    assert "can be written by every user" in caplog.text


def test_the_next_start_lowers_nothing_and_computes_the_same(tmp_path):
    first, lowered = compiled(tmp_path)
    assert sorted(lowered, key=str) == sorted(KEYS, key=str)
    second, lowered = compiled(tmp_path)
    assert lowered == []
    assert len(kept_file(tmp_path).parent.name) == 32  # a name that the store removes when it grows too large
    x = jnp.array([1.0, 5.0])
    assert second["double"](x).tolist() == first["double"](x).tolist() == [2, 10]
    one, other = second["pair", 2](x)
    assert (one.tolist(), other["more"].tolist()) == ([2, 6], [0, 4])


def test_another_fingerprint_finds_nothing(tmp_path):
    compiled(tmp_path)
    assert len(compiled(tmp_path, "other")[1]) == len(KEYS)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-9], lambda whole: b"", lambda whole: whole[:40] + b"x" + whole[41:]]
)
def test_a_damaged_file_is_replaced_and_the_log_says_so(tmp_path, caplog, damage):
    compiled(tmp_path)
    path = kept_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert len(compiled(tmp_path)[1]) == len(KEYS)
    assert compiled(tmp_path)[1] == []
    assert ["damaged" in record.getMessage() for record in caplog.records] == [True]


def test_what_a_killed_process_left_unfinished_goes_after_an_hour(tmp_path):
    compiled(tmp_path)
    path = kept_file(tmp_path)
    abandoned, unfinished = (path.parent / f".programs-{name}" for name in ("old", "new"))
    for left in (abandoned, unfinished):
        left.touch()
    os.utime(abandoned, (time.time() - 3601,) * 2)
    path.write_bytes(b"")
    compiled(tmp_path)
    assert sorted(path.parent.iterdir()) == sorted([path, unfinished])


def test_a_program_that_jax_cannot_read_is_compiled(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("engine.step.program_cache.serialize", lambda program: (b"junk", None, program.out_tree))
    compiled(tmp_path)
    monkeypatch.undo()
    assert len(compiled(tmp_path)[1]) == len(KEYS)
    assert ["compiled anew" in record.getMessage() for record in caplog.records] == [True]
    assert compiled(tmp_path)[1] == []


def test_a_program_is_there_before_its_turn_and_loaded_once(tmp_path, monkeypatch):
    compiled(tmp_path)
    loads: list[Any] = []
    loader_is_at, others_wait, may_go_on = threading.Event(), threading.Barrier(4), threading.Event()
    usual = ProgramCache.load

    def slow(self: ProgramCache, key: Any) -> Any:
        loads.append(key)
        if key == KEYS[1]:
            loader_is_at.set()
            assert may_go_on.wait(PATIENCE_S)
        elif key == KEYS[2]:
            time.sleep(0.05)  # for the others to come meanwhile
        return usual(self, key)

    def get() -> Any:
        others_wait.wait(PATIENCE_S)
        return programs[KEYS[2]]

    monkeypatch.setattr(ProgramCache, "load", slow)
    programs, lowered = compiled(tmp_path)
    assert loader_is_at.wait(PATIENCE_S)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(get) for _ in range(3)]
        others_wait.wait(PATIENCE_S)
        (program,) = {future.result() for future in waiting}
    assert loads == list(KEYS)
    assert not programs.are_loaded.is_set()
    may_go_on.set()
    wait_for_loads()
    assert programs.are_loaded.is_set()
    assert program(jnp.array([1.0, 5.0])).tolist() == [4, 8]
    assert (loads, lowered) == (list(KEYS), [])


def test_programs_are_there_although_no_thread_loads_them(tmp_path, monkeypatch):
    compiled(tmp_path)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        programs, _ = compiled(tmp_path)
    assert programs.are_loaded.is_set()
    programs.close()
    programs.close()
    assert programs["pair", 2](jnp.array([1.0, 5.0]))[0].tolist() == [2, 6]
    with pytest.raises(KeyError):
        programs["pair", 3]


def test_loading_ends_with_close_and_goes_on_with_start(tmp_path, monkeypatch):
    compiled(tmp_path)
    loads: list[Any] = []
    loader_is_at, may_go_on, usual = threading.Event(), threading.Event(), ProgramCache.load

    def slow(self: ProgramCache, key: Any) -> Any:
        loads.append(key)
        if key == KEYS[1]:
            loader_is_at.set()
            assert may_go_on.wait(PATIENCE_S)
        return usual(self, key)

    monkeypatch.setattr(ProgramCache, "load", slow)
    monkeypatch.setattr("engine.step.compiled._CLOSE_SECONDS", 0.01)
    programs, _ = compiled(tmp_path)
    assert loader_is_at.wait(PATIENCE_S)
    programs.close()  # a load that hangs does not hold it up
    may_go_on.set()
    wait_for_loads()
    assert loads == list(KEYS[:2])
    programs.start()
    wait_for_loads()
    programs.start()
    assert loads == list(KEYS)
    assert programs.are_loaded.is_set()


def test_a_later_program_that_jax_cannot_read_is_compiled_and_the_next_start_keeps_it_anew(tmp_path, monkeypatch):
    compiled(tmp_path)
    usual = ProgramCache.load
    monkeypatch.setattr(ProgramCache, "load", lambda self, key: usual(self, key) if key != KEYS[1] else None)
    programs, lowered = compiled(tmp_path)
    assert programs["pair", 2](jnp.array([1.0, 5.0]))[0].tolist() == [2, 6]
    wait_for_loads()
    assert lowered == [("pair", 2)]
    monkeypatch.undo()
    assert compiled(tmp_path)[1] == [("pair", 2)]
    assert compiled(tmp_path)[1] == []


def test_an_error_of_a_later_program_meets_whoever_needs_it(tmp_path, caplog, monkeypatch):
    compiled(tmp_path)
    usual = ProgramCache.load

    def broken(self: ProgramCache, key: Any) -> Any:
        if key == KEYS[1]:
            raise MemoryError("no room")
        return usual(self, key)

    monkeypatch.setattr(ProgramCache, "load", broken)
    programs, _ = compiled(tmp_path)
    wait_for_loads()
    with pytest.raises(MemoryError, match="no room"):
        programs["pair", 2]
    assert programs["double"](jnp.array([1.0, 5.0])).tolist() == [2, 10]
    assert ["could neither be loaded" in record.getMessage() for record in caplog.records] == [True]


def test_what_is_missing_is_added_to_what_is_there(tmp_path, monkeypatch):
    def only_one(key: Any) -> ProgramTrees:
        return ProgramTrees((0,), 0)

    compiled(tmp_path, trees=only_one)
    _, lowered = compiled(tmp_path)
    assert lowered == [("pair", 2)]
    third, lowered = compiled(tmp_path)
    assert lowered == []
    assert third["double"](jnp.array([1.0, 5.0])).tolist() == [2, 10]
    assert third["pair", 2](jnp.array([1.0, 5.0]))[0].tolist() == [2, 6]


def test_a_program_of_other_results_than_stated_is_not_kept(tmp_path):
    def wrong(key: Any) -> ProgramTrees:
        return ProgramTrees((0,), 0)

    compiled(tmp_path, trees=wrong)
    assert compiled(tmp_path, trees=wrong)[1] == [("pair", 2)]


def test_a_folder_that_cannot_be_written_costs_only_time_and_the_log_says_so(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert len(compiled(tmp_path / "file")[1]) == len(KEYS)
    assert ["are not kept in" in record.getMessage() for record in caplog.records] == [True]


def test_another_processor_fewer_cores_and_other_flags_of_the_compiler_are_other_environments(monkeypatch):
    seen = {environment(), environment()}
    monkeypatch.setattr("engine.step.program_cache.num_cores", lambda: 1 << 20)
    seen.add(environment())
    monkeypatch.setattr("engine.step.program_cache.cpu_features", lambda: "flags: of an older machine")
    seen.add(environment())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    seen.add(environment())
    assert len(seen) == 4


async def generated(engine: Engine, **changes: Any) -> list[int]:
    client = EngineClient(engine)
    client.start(asyncio.get_running_loop())
    params = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True, "logprobs": 1} | changes
    stream = client.submit([1, 2, 3], SamplingParams(**params))
    token_ids = [token_id async for event in stream for token_id in event.token_ids]
    client.shutdown()
    return token_ids


async def test_an_engine_finds_all_of_its_programs_again(tmp_path, monkeypatch, caplog):
    folder = write_folder(tmp_path / "model")
    config = EngineConfig(
        max_num_seqs=1, max_num_batched_tokens=TILE_SIZE, num_pages=20, decode_chunk=2,
        max_model_len=min(64, CONFIG["max_position_embeddings"]), compilation_cache=str(tmp_path / "programs"),
    )  # fmt: skip
    expected = await generated(Engine.load(folder, config, silent))
    # What JAX has in its own cache now must not get into the file.
    for path in (tmp_path / "programs").rglob("programs"):
        path.unlink()
    Engine.load(folder, config, silent)

    def refuse(*_: Any) -> Any:
        raise AssertionError("a program is lowered")

    for name in vars(StepPrograms):
        if name.startswith("_lower"):
            monkeypatch.setattr(StepPrograms, name, refuse)
    engine = Engine.load(folder, config, silent)
    wait_for_loads()
    assert await generated(engine) == expected
    assert not caplog.records


async def test_what_a_first_request_needs_is_loaded_before_all_else(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "model")
    config = EngineConfig(
        max_num_seqs=32, max_num_batched_tokens=2 * TILE_SIZE, num_pages=20,
        max_model_len=min(64, CONFIG["max_position_embeddings"]), compilation_cache=str(tmp_path / "programs"),
    )  # fmt: skip
    Engine.load(folder, config, silent)
    loaded: list[Any] = []
    load = ProgramCache.load
    monkeypatch.setattr(ProgramCache, "load", lambda kept, key: loaded.append(key) or load(kept, key))
    engine = Engine.load(folder, config, silent)
    wait_for_loads()
    used: list[Any] = []
    get = CompiledPrograms.__getitem__
    monkeypatch.setattr(CompiledPrograms, "__getitem__", lambda programs, key: used.append(key) or get(programs, key))
    for temperature in (0.0, 1.0):
        await generated(engine, temperature=temperature, logprobs=None)
    # Native kernels: steps of decode rows are bursts.
    assert {key[0] for key in used} in ({"forward", "sample"}, {"forward", "sample", "burst"})
    assert (("forward", StepShape(1, 0)) in used) is not (("burst", 1) in used)
    assert set(used) == set(loaded[: len(set(used))])
