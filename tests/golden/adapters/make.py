"""Makes `llama.gguf` with llama.cpp's own converter of adapters.

With a source tree of llama.cpp and the virtual environment of tests/golden/architectures/make.py:

    python -m tests.golden.adapters.make LLAMA_CPP goldenv/bin/python
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.engine.adapters.peft_adapters import write_adapter
from tests.golden.adapters.converted import CONFIG, FILE, converted_pairs, write_base


def make(llama_cpp: Path, python: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        base = write_base(Path(root) / "base")
        adapter = write_adapter(Path(root) / "adapter", converted_pairs(base), CONFIG)
        script = llama_cpp / "convert_lora_to_gguf.py"
        subprocess.run([python, script, "--base", base, "--outfile", FILE, adapter], check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2])
