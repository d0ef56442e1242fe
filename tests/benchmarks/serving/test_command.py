"""What all benchmark commands begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving import command
from engine.backends.native.sources import digest


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of that of the kernels."""
    monkeypatch.setattr(command, "KERNELS", tmp_path)
    monkeypatch.delenv("EAGRE_NATIVE_VARIANT", raising=False)
    monkeypatch.delenv("EAGRE_NATIVE_FOLDER", raising=False)
    monkeypatch.setattr("sys.argv", ["benchmark", "--rounds", "1"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return tmp_path


def status_of(main: object) -> object:
    with pytest.raises(SystemExit) as ended:
        command.run("benchmarks.some", main)
    return ended.value.code


def test_the_arguments_and_the_status_are_those_of_the_process(kernels):
    (kernels / "libeagre_avx2.so").write_bytes(b"\x7fELF" + digest().encode() + b"\0")
    assert status_of(len) == 2


def test_kernels_of_other_sources_are_refused(kernels, monkeypatch):
    (kernels / "libeagre_avx2.so").write_bytes(b"\x7fELF 0123456789abcdef")
    (kernels / "libeagre_plain.so").write_bytes(b"\x7fELF")  # of tests alone
    refusal = status_of(lambda _: 0)
    assert "benchmarks.some: libeagre_avx2.so in" in refusal
    assert "`make native`" in refusal
    monkeypatch.setenv("EAGRE_NATIVE_VARIANT", "none")
    assert status_of(lambda _: 0) == 0


def test_no_kernels_are_no_stale_ones(kernels):
    assert command.stale_kernels(kernels) == []
    assert status_of(lambda _: 0) == 0


def test_the_kernels_of_another_folder_count_where_one_is_named(kernels, monkeypatch):
    other = kernels / "other"
    other.mkdir()
    (kernels / "libeagre_avx2.so").write_bytes(b"\x7fELF")
    (other / "libeagre_avx2.so").write_bytes(digest().encode())
    monkeypatch.setenv("EAGRE_NATIVE_FOLDER", str(other))
    assert status_of(lambda _: 0) == 0
    (other / "libeagre_amx.so").write_bytes(b"\x7fELF")
    assert "libeagre_amx.so in" in status_of(lambda _: 0)
