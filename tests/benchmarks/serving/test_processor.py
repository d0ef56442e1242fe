from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving import processor
from benchmarks.serving.processor import STAT, Disturbance, Moment, our_time

SPIN = """
import time
while time.process_time() < 0.3:
    pass
print(flush=True)
input()
"""


needs_linux = pytest.mark.skipif(not STAT.exists(), reason="only Linux tells")


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
    monkeypatch.setattr(processor, "STAT", tmp_path)
    monkeypatch.setattr(processor, "now", lambda: next(moments))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert Disturbance().share() == share


def test_without_the_files_of_the_kernel_the_share_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "STAT", tmp_path / "missing")
    assert Disturbance().share() is None


@needs_linux
def test_a_family_is_a_process_and_all_that_come_from_it() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'print(flush=True); input()'])"
    with subprocess.Popen(
        (sys.executable, "-S", "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()  # the grandchild runs
        family = processor.family_of(first.pid)
        assert family[0] == first.pid
        assert len(family) == 2
        first.communicate(b"\n")
    assert processor.family_of(first.pid) == [first.pid]
