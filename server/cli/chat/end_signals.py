"""Signals that end a conversation while it waits for a line."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection

RESEND_S = 0.2


def exit_on(numbers: Collection[signal.Signals]) -> None:
    """Lets signals end the main thread by SystemExit, so that what is open is closed. To be called in that thread.

    Python runs a handler between two instructions. A signal that comes just before a read that blocks, or in another
    thread, interrupts nothing, and the handler would wait for the next line. So each signal is sent again to the main
    thread until the handler has run.
    """
    main, (reading, writing) = threading.get_ident(), os.pipe()
    os.set_blocking(writing, False)

    def end(number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # one end is enough: what is being closed is not interrupted
        raise SystemExit(128 + number)

    def resend() -> None:
        while True:
            (number,) = os.read(reading, 1)
            time.sleep(RESEND_S)
            if number in numbers:
                signal.pthread_kill(main, number)

    for number in numbers:
        signal.signal(number, end)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=resend, name="eagre-signals", daemon=True).start()
