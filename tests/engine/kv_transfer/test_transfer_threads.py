"""The threads that carry pages."""

import threading

import pytest

from engine.kv_transfer.transfer_threads import TransferThreads
from tests.patience import PATIENCE_S


class Counter:
    """A connector that counts how often it is told to look around."""

    def __init__(self):
        self.num_looks = 0

    def refresh(self):
        self.num_looks += 1


def test_a_busy_server_looks_around_too():
    now, connector = [0.0], Counter()
    threads = TransferThreads(None, lambda: None, lambda: now[0])
    threads.open(lambda: connector)
    for _ in range(5):
        threads.submit(lambda: now.__setitem__(0, now[0] + 40.0))
    threads.close(20.0)
    assert connector.num_looks == 2


def test_a_failed_errand_does_not_end_the_thread(caplog):
    threads, done = TransferThreads(None, lambda: None, lambda: 0.0), []

    def fail():
        raise OSError(5, "Input/output error")

    threads.submit(fail)
    threads.submit(lambda: done.append(1))
    threads.close(20.0)
    assert done == [1]
    assert "Input/output error" in caplog.text


@pytest.mark.parametrize("num_given", [0, 1, 2])
def test_no_thread_stays_where_the_system_does_not_give_all(monkeypatch, num_given):
    """Those that it had given waited for ever, and held the device."""
    start, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) == num_given:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="start new thread"):
        TransferThreads(None, lambda: None, lambda: 0.0)
    for thread in started:
        thread.join(PATIENCE_S)
    assert [thread.is_alive() for thread in started] == [False] * num_given
