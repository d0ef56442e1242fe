"""The rooms of the C++ sources: includes point downwards, and no room has too many files."""

from __future__ import annotations

import re

import pytest

from engine.backends.native.sources import SOURCES

# From the top to the bottom: a file includes files of its own room and of rooms below it.
ROOMS = (
    "ffi", "sampling", "filters", "processors", "attention", "choice", "pages", "recurrence", "products", "packing",
    "tiles", "layout", "runtime", "nodes", "vectors", "isa",
)  # fmt: skip
MAX_FILES = 15

FILES = sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.glob("**/*.*"))


def included(path: str) -> list[str]:
    """What a file includes by quotes, which are our own files and XLA's interface."""
    return re.findall(r'^#include "([^"]+)"', (SOURCES / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_rooms_are_those_that_are_listed():
    assert {path.split("/")[0] for path in FILES} == set(ROOMS)
    assert all(path.count("/") == 1 for path in FILES)


@pytest.mark.parametrize("path", FILES)
def test_includes_point_downwards(path):
    room = ROOMS.index(path.split("/")[0])
    for other in included(path):
        if other == "xla/ffi/api/c_api.h":
            assert ROOMS[room] == "ffi"
            continue
        assert other in FILES
        assert ROOMS.index(other.split("/")[0]) >= room, f"{path} includes {other}, which stands above it"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_of_a_size_to_be_surveyed(room):
    assert 1 <= sum(path.startswith(f"{room}/") for path in FILES) <= MAX_FILES


def test_headers_are_in_no_circle():
    def walk(path: str, above: tuple[str, ...]) -> None:
        assert path not in above, " -> ".join((*above, path))
        for other in included(path):
            if other in FILES:
                walk(other, (*above, path))

    for path in FILES:
        walk(path, ())


def test_objects_have_names_of_their_own():
    """The build puts the objects of all rooms into one folder."""
    stems = [path.rsplit("/", 1)[1] for path in FILES if path.endswith(".cc")]
    assert len(stems) == len(set(stems))
