"""Signals end a conversation that waits for a line."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

SCRIPT = """
import os, signal, sys, threading, time
from server.cli.chat.end_signals import exit_on

exit_on((signal.SIGHUP, signal.SIGTERM))

def send():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.{name})  # it interrupts nothing in the main thread

threading.Thread(target=send, daemon=True).start()
try:
    input()
finally:
    os.kill(os.getpid(), signal.{name})  # another one does not interrupt what is closed
    time.sleep(0.5)
    print("closed", flush=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_interrupts_no_read_ends_it_all_the_same(name: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(name=name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.wait(PATIENCE_S) == 128 + signal.Signals[name]
        assert process.stdout.read() == "closed\n"
