from __future__ import annotations

import io
import re
import threading

from server.model_sources.hub_download import _counting_bar
from server.startup.progress import ProgressReporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d s\b", "0.0 s", text)


def test_without_a_terminal_there_are_lines() -> None:
    stream = io.StringIO()
    with ProgressReporter(stream) as progress:
        for done in range(0, 5_000_001, 1_000_000):
            progress("download tiny", done, 5_000_000)
        for done in range(4):
            progress("compile", done, 3)
    assert without_times(stream.getvalue()) == (
        "download tiny ...\ndownload tiny: done, 5.0 MB in 0.0 s\ncompile ...\ncompile: done, 3 in 0.0 s\n"
    )


def test_an_unfinished_stage_is_reported_as_such() -> None:
    stream = io.StringIO()
    with ProgressReporter(stream) as progress:
        progress("load weights", 2_000_000, 5_000_000)
        progress("compile", 1, 3)
    assert without_times(stream.getvalue()) == (
        "load weights ...\nload weights: ended at 2.0 MB of 5.0 MB after 0.0 s\n"
        "compile ...\ncompile: ended at 1 of 3 after 0.0 s\n"
    )


def test_a_stage_may_come_again() -> None:
    stream = io.StringIO()
    with ProgressReporter(stream) as progress:
        progress("compile", 1, 1)
        progress("compile", 1, 1)
    assert stream.getvalue().count("compile ...") == 2


def test_bytes_have_their_unit_and_other_things_no_rate() -> None:
    stream = Terminal()
    with ProgressReporter(stream) as progress:
        progress("load weights", 0, 96_000_000)
        progress("load weights", 96_000_000, 96_000_000)
        progress("compile", 0, 3)
        progress("compile", 3, 3)
    weights, compiled, _ = stream.getvalue().split("\n")
    assert "96.0M/96.0M" in weights
    assert "B/s" in weights
    assert "3/3" in compiled
    assert "it/s" not in stream.getvalue()


def test_bars_in_a_terminal() -> None:
    stream = Terminal()
    with ProgressReporter(stream) as progress:
        progress("download tiny", 0, 0)
        progress("download tiny", 2_000_000, 4_000_000)
        progress("download tiny", 4_000_000, 4_000_000)
        progress("compile", 0, 3)
        progress("compile", 3, 3)
    download, compiled, rest = stream.getvalue().split("\n")
    assert "download tiny: 100%" in download.split("\r")[-1]
    assert "4.00M/4.00M" in download.split("\r")[-1]
    assert "B/s" in download
    assert "3/3" in compiled.split("\r")[-1]
    assert rest == ""


def test_close_ends_a_bar_and_may_be_repeated() -> None:
    stream = Terminal()
    progress = ProgressReporter(stream)
    progress("compile", 1, 3)
    progress.close()
    progress.close()
    assert stream.getvalue().endswith("\n")
    assert "1/3" in stream.getvalue()


def test_a_bar_leaves_no_thread_behind() -> None:
    """tqdm's own thread ends with the process, and there is one for each class of bars."""
    before = set(threading.enumerate())
    with ProgressReporter(Terminal()) as progress:
        progress("download tiny", 1, 2)
    for _ in range(3):
        _counting_bar(lambda _: None)(total=3).update(1)
    assert set(threading.enumerate()) <= before  # others may have ended meanwhile
