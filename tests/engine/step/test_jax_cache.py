"""Programs on disk: found again, whole or not at all, within a limit, and never in anybody's way."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

from engine.step.jax_cache import JaxCompilationCache
from tests.patience import PATIENCE_S

HITS = "/jax/compilation_cache/cache_hits"
PROGRAMS = {"double": lambda x: x * 2 + 0.25, "square": lambda x: x * x + 0.125}


class Hits:
    def __init__(self) -> None:
        self.count = 0

    def note(self, event: str, **kwargs: str | int) -> None:
        self.count += event == HITS


@pytest.fixture(scope="module")
def hits():
    counter = Hits()  # jax keeps its listeners for ever, so there is one for all tests of this file
    jax.monitoring.register_event_listener(counter.note)
    return counter


def compile_all(store, hits, fingerprint="tiny"):
    """Compiles the programs anew, as another process would, and tells how many came from the store."""
    jax.clear_caches()
    before = hits.count
    with store.opened(fingerprint):
        for function in PROGRAMS.values():
            program = jax.jit(function).lower(jax.ShapeDtypeStruct((3,), jnp.float32)).compile()
            assert program(jnp.ones(3)).shape == (3,)
    return hits.count - before


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*-cache.*") if path.is_file())


def keys(folder: Path) -> list[str]:
    return [path.name.rpartition(".")[0] for path in entries(folder)]


@pytest.mark.parametrize("mode", [0o666, 0o777])
def test_entries_that_others_can_write_are_not_lent_to_jax(tmp_path, hits, caplog, mode):
    assert compile_all(JaxCompilationCache(tmp_path), hits) == 0
    changed = [*entries(tmp_path)] if mode == 0o666 else [entries(tmp_path)[0].parent]
    for path in changed:
        path.chmod(mode)
    assert compile_all(JaxCompilationCache(tmp_path), hits) == 0
    assert caplog.text.count("can be written by every user") == 1
    for path in entries(tmp_path):
        path.chmod(0o600)
    entries(tmp_path)[0].parent.chmod(0o700)
    assert compile_all(JaxCompilationCache(tmp_path), hits) >= len(PROGRAMS)  # small ones of JAX's own are there too


def test_programs_are_found_again_and_nothing_else_stays(tmp_path, hits):
    store = JaxCompilationCache(tmp_path)
    assert compile_all(store, hits) == 0
    kept = entries(tmp_path)
    assert len(kept) >= len(PROGRAMS)
    assert compile_all(store, hits) >= len(PROGRAMS)
    assert entries(tmp_path) == kept
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert jax.config.jax_compilation_cache_dir is None


def test_another_fingerprint_finds_nothing(tmp_path, hits):
    store = JaxCompilationCache(tmp_path)
    compile_all(store, hits, "one")
    assert compile_all(store, hits, "other") == 0


@pytest.mark.parametrize(
    "damage", [lambda content: content[: len(content) // 2], lambda content: b"", lambda c: c + b"x"]
)
def test_a_damaged_entry_is_replaced_and_the_log_says_so_once(tmp_path, hits, caplog, damage):
    """A warning of Python's would be an error in these tests."""
    store = JaxCompilationCache(tmp_path)
    compile_all(store, hits)
    kept = keys(tmp_path)
    for path in entries(tmp_path):
        path.write_bytes(damage(path.read_bytes()))
    assert compile_all(store, hits) == 0
    assert compile_all(store, hits) >= len(PROGRAMS)
    assert keys(tmp_path) == kept
    assert [record.getMessage() for record in caplog.records] == [
        f"damaged programs in {tmp_path}, which have been compiled anew: {len(kept)}"
    ]


def make_unreadable(path: Path) -> None:
    """Leaves an entry that is whole, as its checksum says, and means nothing to JAX."""
    content = b"another version's program"
    checksum = hashlib.blake2b(content, digest_size=8).hexdigest()
    path.unlink()
    path.with_name(f"{path.name.rpartition('.')[0]}.{checksum}").write_bytes(content)


def test_an_entry_that_jax_cannot_read_is_replaced_at_once(tmp_path, hits, caplog):
    store = JaxCompilationCache(tmp_path)
    compile_all(store, hits)
    kept = keys(tmp_path)
    for path in entries(tmp_path):
        make_unreadable(path)
    assert compile_all(store, hits) == 0
    assert compile_all(store, hits) >= len(PROGRAMS)
    assert keys(tmp_path) == kept
    assert ["damaged programs" in record.getMessage() for record in caplog.records] == [True]


def test_an_entry_that_is_not_wholly_written_is_not_kept(tmp_path, hits, caplog, monkeypatch):
    """On a full disk JAX leaves a part of an entry behind."""
    write = Path.write_bytes

    def fill(path: Path, content: bytes) -> int:
        if path.name.endswith("-cache"):
            write(path, content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        return write(path, content)

    store = JaxCompilationCache(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill)
        assert compile_all(store, hits) == 0
    assert entries(tmp_path) == []
    (record,) = caplog.records
    assert "not kept" in record.getMessage()
    assert "No space left on device" in record.getMessage()
    assert compile_all(store, hits) == 0
    assert compile_all(store, hits) >= len(PROGRAMS)


def test_foreign_files_are_no_entries(tmp_path, hits):
    store = JaxCompilationCache(tmp_path)
    compile_all(store, hits)
    (entries(tmp_path)[0].parent / "README").write_text("hello")
    assert compile_all(store, hits) >= len(PROGRAMS)


def test_two_who_compile_the_same_leave_one_entry_each(tmp_path, hits):
    store = JaxCompilationCache(tmp_path)
    compile_all(store, hits)
    folder = entries(tmp_path)[0].parent
    for path in entries(tmp_path):  # as if another process had published the same program in other bytes
        path.rename(folder / f"{path.name.rpartition('.')[0]}.{'0' * 16}")
    compile_all(store, hits)
    assert len(keys(tmp_path)) == len(set(keys(tmp_path)))


def test_the_least_recently_used_configurations_go_first(tmp_path, hits):
    compile_all(JaxCompilationCache(tmp_path), hits, "old")
    compile_all(JaxCompilationCache(tmp_path), hits, "new")
    for age, path in enumerate(sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)):
        os.utime(path, (1_000_000_000 - age, 1_000_000_000 - age))
    size = sum(path.stat().st_size for path in entries(tmp_path))
    assert compile_all(JaxCompilationCache(tmp_path, max_bytes=size + size // 4), hits, "third") == 0
    assert compile_all(JaxCompilationCache(tmp_path), hits, "new") >= len(PROGRAMS)
    assert compile_all(JaxCompilationCache(tmp_path), hits, "old") == 0


def test_what_others_keep_in_the_folder_is_never_removed(tmp_path, hits):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.gguf").write_bytes(bytes(10_000))
    compile_all(JaxCompilationCache(tmp_path, max_bytes=1), hits)
    assert (tmp_path / "models" / "model.gguf").exists()


def test_two_threads_leave_the_settings_as_they_were(tmp_path):
    store, before = JaxCompilationCache(tmp_path), jax.config.jax_compilation_cache_dir
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()

    def first():
        with store.opened("first"):
            first_is_in.set()
            second_is_in.wait(0.5)
        first_is_out.set()

    def second():
        first_is_in.wait()
        with store.opened("second"):
            second_is_in.set()
            first_is_out.wait(PATIENCE_S)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jax.config.jax_compilation_cache_dir == before


@pytest.mark.parametrize("inside_a_file", [True, False])
def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, hits, caplog, inside_a_file):
    if inside_a_file:
        (tmp_path / "file").write_text("")
        folder = tmp_path / "file" / "programs"
    else:
        folder = Path("/proc/programs")
    store = JaxCompilationCache(folder)
    assert compile_all(store, hits) == 0
    assert [str(folder) in record.getMessage() for record in caplog.records] == [True]
    assert compile_all(store, hits) == 0


def test_without_any_folder_programs_are_compiled(tmp_path, hits, caplog, monkeypatch):
    def no_folder(*args: object, **kwargs: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", no_folder)
    assert compile_all(JaxCompilationCache(tmp_path), hits) == 0
    assert ["No space left" in record.getMessage() for record in caplog.records] == [True]


def test_a_folder_that_another_process_takes_for_abandoned_is_made_again(tmp_path, hits, monkeypatch):
    """The other process comes between the folder's making and its lock."""
    make, made = tempfile.mkdtemp, list[str]()

    def make_and_lose(*args: Any, **kwargs: Any) -> str:
        made.append(make(*args, **kwargs))
        if len(made) <= 2:
            shutil.rmtree(made[-1])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    assert compile_all(JaxCompilationCache(tmp_path), hits) == 0
    assert len(made) == 3
    assert compile_all(JaxCompilationCache(tmp_path), hits) >= len(PROGRAMS)


def test_a_configuration_that_another_process_evicts_meanwhile_is_kept_all_the_same(tmp_path, hits):
    jax.clear_caches()
    with JaxCompilationCache(tmp_path).opened("tiny"):
        jax.jit(PROGRAMS["double"]).lower(jax.ShapeDtypeStruct((3,), jnp.float32)).compile()
        for folder in tmp_path.iterdir():
            if not folder.name.startswith("."):
                shutil.rmtree(folder)
    assert entries(tmp_path)


def test_what_a_full_disk_refuses_is_compiled_again(tmp_path, hits, monkeypatch):
    store = JaxCompilationCache(tmp_path)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert compile_all(store, hits) == 0
    assert entries(tmp_path) == []
    assert compile_all(store, hits) == 0
    assert compile_all(store, hits) >= len(PROGRAMS)


KILLED = """
import os, signal, sys
from pathlib import Path
import jax, jax.numpy as jnp
from engine.step.jax_cache import JaxCompilationCache
with JaxCompilationCache(Path(sys.argv[1])).opened("tiny"):
    jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((3,), jnp.float32)).compile()
    print("compiled", flush=True)
    if len(sys.argv) > 2:
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed(tmp_path, hits):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, stdout=subprocess.DEVNULL)
    assert any(path.name.startswith(".private-") for path in tmp_path.iterdir())
    compile_all(JaxCompilationCache(tmp_path), hits)
    assert not any(path.name.startswith(".private-") for path in tmp_path.iterdir())


def test_what_a_living_process_uses_stays(tmp_path, hits):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"compiled\n"
        (private,) = [path for path in tmp_path.iterdir() if path.name.startswith(".private-")]
        compile_all(JaxCompilationCache(tmp_path), hits)
        assert any(private.iterdir())
        with contextlib.suppress(BrokenPipeError):
            other.communicate(b"")


def fail_after_compiling(store):
    with store.opened("tiny"):
        for function in PROGRAMS.values():
            jax.jit(function).lower(jax.ShapeDtypeStruct((3,), jnp.float32)).compile()
        raise RuntimeError("later")


def test_programs_are_kept_although_the_work_failed(tmp_path, hits):
    jax.clear_caches()
    with pytest.raises(RuntimeError, match="later"):
        fail_after_compiling(JaxCompilationCache(tmp_path))
    assert compile_all(JaxCompilationCache(tmp_path), hits) >= len(PROGRAMS)
