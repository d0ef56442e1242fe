"""The size of what a client has sent, without looking at all of it."""

from __future__ import annotations

from typing import Any

import pytest

from server.wire.json_values import is_longer, size_of

VALUE = {"ab": ["cde", 1, None, {}], "f": "g"}
SIZE = 7 + len("abcdefg")  # values, and characters with those of the keys


@pytest.mark.parametrize("most", [SIZE, SIZE + 1, 1000])
def test_a_value_within_the_limit_is_counted_whole(most: int) -> None:
    assert size_of(VALUE, most) == SIZE
    assert size_of(VALUE, 10 * most, each=4) == SIZE + 3 * 7
    assert not is_longer(VALUE, most)


@pytest.mark.parametrize("most", range(SIZE))
def test_one_beyond_it_has_some_size_beyond_it(most: int) -> None:
    assert size_of(VALUE, most) > most
    assert is_longer(VALUE, most)


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
