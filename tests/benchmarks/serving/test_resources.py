from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving import resources
from benchmarks.serving.resources import STAT, Moment, OtherLoad, ResidentMemory, our_time

SPIN = """
import time
while time.process_time() < 0.3:
    pass
print(flush=True)
input()
"""


needs_linux = pytest.mark.skipif(not STAT.exists(), reason="only Linux has /proc")


@needs_linux
def test_time_of_running_and_ended_children_counts_as_ours() -> None:
    before = our_time()
    with subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while_alive = our_time()
        process.communicate(b"\n")
    assert while_alive - before > 0.25
    assert our_time() - before > 0.25


@pytest.mark.parametrize(("ours", "share"), [(7.0, 0.25), (8.0, 0.0), (8.5, 0.0), (3.0, 1.0)])
def test_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ours: float, share: float) -> None:
    """Two processors are busy for all of two seconds each."""
    moments = iter([Moment(wall=100.0, busy=50.0, ours=4.0), Moment(wall=102.0, busy=54.0, ours=ours)])
    monkeypatch.setattr(resources, "STAT", tmp_path)
    monkeypatch.setattr(resources, "now", lambda: next(moments))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert OtherLoad().share() == share


def test_without_the_files_of_the_kernel_the_share_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "STAT", tmp_path / "missing")
    assert OtherLoad().share() is None


@needs_linux
def test_a_process_tree_is_a_process_and_its_descendants() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'print(flush=True); input()'])"
    with subprocess.Popen(
        (sys.executable, "-S", "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()  # the grandchild runs
        tree = resources.process_tree(first.pid)
        assert tree[0] == first.pid
        assert len(tree) == 2
        first.communicate(b"\n")
    assert resources.process_tree(first.pid) == [first.pid]


@needs_linux
def test_the_peak_stays_after_memory_is_freed() -> None:
    code = "data = bytearray(b'x') * (64 << 20); del data; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory = ResidentMemory.of(process.pid)
        process.communicate(b"\n")
    assert memory is not None
    assert memory.now >= 1 << 20
    assert memory.peak - memory.now >= 60 << 20


@needs_linux
def test_an_ended_process_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
            ResidentMemory.of(process.pid)
    with pytest.raises(ProcessLookupError, match=f"no process {process.pid}"):
        ResidentMemory.of(process.pid)
