"""The size of what a client has sent, without looking at all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.protocol.json_limits import is_deeper, is_longer, size_of

VALUE = {"ab": ["cde", 1, None, {}], "f": "g"}
SIZE = 7 + len("abcdefg")  # values, and characters with those of the keys


@pytest.mark.parametrize(("value", "depth"), [("a", 0), ([], 1), ({"a": 1}, 1), (VALUE, 3), ([1, [[{}], 2]], 4)])
def test_the_depth_of_a_value_is_that_of_its_lists_and_objects(value: Any, depth: int) -> None:
    assert [is_deeper(value, most) for most in range(6)] == [most < depth for most in range(6)]


@pytest.mark.parametrize("most", [SIZE, SIZE + 1, 1000])
def test_a_value_within_the_limit_is_counted_whole(most: int) -> None:
    assert size_of(VALUE, most) == SIZE
    assert size_of(VALUE, 10 * most, each=4) == SIZE + 3 * 7
    assert not is_longer(VALUE, most)


@pytest.mark.parametrize("most", range(SIZE))
def test_one_beyond_it_has_some_size_beyond_it(most: int) -> None:
    assert size_of(VALUE, most) > most
    assert is_longer(VALUE, most)


@pytest.mark.parametrize(
    "value", ["\0\x1f\n", '"' * 9, "\\" * 9, {"\0" * 9: '"'}, [-1.2345678901234567e-300], [-(2**63)]]
)
def test_what_json_writes_longer_counts_as_it_is_written(value: Any) -> None:
    written = len(json.dumps(value, ensure_ascii=False))
    size = size_of([value] * 100, 100_000)
    assert 100 * (written - len('{"":""}')) <= size <= 200 * written
    assert is_longer([value] * 100, size - 1)


def test_usual_texts_count_their_characters() -> None:
    assert size_of(["one two", "дом", True, 3], 100, each=0) == len("one two") + len("дом")


def test_nothing_is_looked_at_where_nothing_is_left() -> None:
    assert size_of(VALUE, -1) == 0


def test_no_more_than_the_limit_is_looked_at() -> None:
    num_looks = 0

    class Noted(dict[str, Any]):
        def values(self) -> Any:
            nonlocal num_looks
            num_looks += 1
            return super().values()

    assert size_of([[Noted(a="b")] * 10] * 100, 300) > 300
    assert num_looks < 100
    assert size_of([Noted(a="b")] * 1000, 300) > 300
    assert num_looks < 100
