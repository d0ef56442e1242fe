"""How the library is called beside an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

_COUNT_THREADS = """
import os
from tokenizers import Tokenizer, models
from server.text.tokenization.tokenizers_encoder import disable_tokenizers_threads

disable_tokenizers_threads()
before = len(os.listdir("/proc/self/task"))
Tokenizer(models.BPE()).encode_batch_fast(["tide"])
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted by /proc")
def test_a_text_is_encoded_in_the_thread_of_its_caller() -> None:
    counted = subprocess.run([sys.executable, "-c", _COUNT_THREADS], capture_output=True, text=True, check=True)
    assert counted.stdout == "0\n"
