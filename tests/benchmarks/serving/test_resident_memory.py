from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving.resident_memory import ResidentMemory

LINUX = Path("/proc/self/status").exists()


@pytest.mark.skipif(not LINUX, reason="only Linux tells")
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


@pytest.mark.skipif(not LINUX, reason="only Linux tells")
def test_an_ended_process_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
            ResidentMemory.of(process.pid)
    with pytest.raises(ProcessLookupError, match=f"no process {process.pid}"):
        ResidentMemory.of(process.pid)
