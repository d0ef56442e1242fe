"""What `make sanitize` compiles, with what the compiler alone can say of it."""

from __future__ import annotations

import subprocess

import pytest

from engine.backends.native.sources import SOURCES
from tests.engine.backends.native.runtime.harness import COMPILER
from tests.patience import PROCESS_S


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_what_is_chosen_by_format_is_a_constant_with_sanitizers_too():
    """GCC takes fewer expressions for constants then, such as whether an address is null."""
    command = [COMPILER, "-std=c++17", "-fsanitize=address,undefined", "-fsyntax-only", f"-I{SOURCES}"]
    result = subprocess.run(
        [*command, SOURCES / "tiles/integer_kernel.cc"], capture_output=True, timeout=PROCESS_S, check=False
    )
    assert result.returncode == 0, result.stderr.decode()[:2000]
