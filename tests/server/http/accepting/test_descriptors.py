"""The limit of open files bounds the connections."""

from __future__ import annotations

import resource

import pytest

from server.http.accepting.descriptors import are_scarce, num_connections


@pytest.mark.parametrize("num_each", [1, 2])
def test_a_low_limit_of_open_files_allows_fewer_connections(monkeypatch: pytest.MonkeyPatch, num_each: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    few = num_connections(4096, num_each)
    assert 300 < few * num_each < 1000
    assert num_connections(10, num_each) == 10


def test_without_a_limit_of_open_files_all_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert num_connections(4096) == 4096


def test_descriptors_are_scarce_where_the_last_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1100, 1100))
    assert not are_scarce(100)
    assert are_scarce(1099)
