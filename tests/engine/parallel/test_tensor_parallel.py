"""One model over several devices, in a process of its own, because a CPU looks like so many from its start on."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent / "on_four_devices.py"


def test_one_model_over_two_and_four_devices() -> None:
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4 {quick}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(TESTS)]
    environment = {**os.environ, "XLA_FLAGS": flags}
    done = subprocess.run(command, env=environment, cwd=TESTS.parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
