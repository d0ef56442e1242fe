"""Which layers share pages, and how long a prefix can be continued when windows have given pages back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.hashing import hash_request_tokens, sha256_hash
from cache.page_groups import PageGroups, first_seen_page, group_layers, longest_prefix, longest_run, most_pages


def windows_of(num_layers: int, period: int, window: int) -> list[int]:
    return [window if (layer + 1) % period else 0 for layer in range(num_layers)]


@pytest.mark.parametrize(
    ("windows", "expected", "num_layers"),
    [
        (windows_of(18, 6, 512), (0, 512, 512, 512, 512, 512), 3),  # Gemma 3 270M
        (windows_of(34, 6, 1024), (0, *[1024] * 6), 5),  # Gemma 3 4B: one place of its pages is empty
        (windows_of(24, 2, 128), (0, 128), 12),  # gpt-oss 20B
        ([4096] * 32, (4096,), 32),  # Mistral
    ],
)
def test_groups_are_as_large_as_the_fewest_layers_of_a_kind(windows, expected, num_layers):
    groups = group_layers(windows, 30_000)
    assert groups is not None
    assert (groups.windows, groups.num_layers) == (expected, num_layers)
    assert [groups.windows[group] for group in groups.of_layer] == windows
    assert len(set(zip(groups.of_layer, groups.places, strict=True))) == len(windows)
    assert max(groups.places) < num_layers


@pytest.mark.parametrize("windows", [[0] * 8, [], [600, 0], [0] * 40 + [9]])
def test_there_are_no_groups_where_they_give_nothing_back_or_take_more(windows):
    assert group_layers(windows, 600) is None


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(4, 400), st.integers(1, 50))
def test_the_longest_sequence_is_the_last_that_fits(windows, num_pages, max_step_tokens):
    groups = PageGroups((0, *windows), (), (), 1)

    def needed(length: int) -> int:
        return length + sum(min(length, most_pages(window, 8, max_step_tokens)) for window in windows)

    length = groups.longest_sequence(num_pages, 8, max_step_tokens) // 8
    assert needed(length) <= num_pages < needed(length + 1)


@given(
    st.sampled_from([(0,), (0, 1), (5,), (0, 9, 9), (13, 4), (0, 0, 6)]),
    st.integers(0, 12),
    st.floats(0, 0.4),
    st.integers(0, 2**32 - 1),
)
def test_the_longest_prefix_has_all_pages_that_a_later_token_sees(windows, num_pages, share_missing, seed):
    page_size, looked_up = 4, []
    is_missing = np.random.default_rng(seed).random((len(windows), num_pages)) < share_missing

    def is_there(index: int, group: int) -> bool:
        looked_up.append((index, group))
        return not is_missing[group, index]

    def sees_only_what_is_there(length: int) -> bool:
        return all(
            not is_missing[group, index]
            for group, window in enumerate(windows)
            for index in range(length)
            if not window or (index + 1) * page_size > length * page_size - window + 1
        )

    expected = max(length for length in range(num_pages + 1) if sees_only_what_is_there(length))
    assert longest_prefix(longest_run(num_pages, windows, is_there), windows, page_size, is_there) == expected
    assert len(set(looked_up)) == len(looked_up)


def test_long_prefixes_are_looked_up_where_their_windows_end():
    """All groups have the last window but for one page, and nothing before it: the gap is stepped over at once."""
    num_looked_up = 0

    def is_there(index: int, group: int) -> bool:
        nonlocal num_looked_up
        num_looked_up += 1
        return index >= 1970 and index != 1999

    assert longest_prefix(2000, (0, 512, 512), 16, is_there) == 0
    assert num_looked_up < 200


def test_names_of_groups_differ_and_the_first_is_unchanged():
    (name,) = hash_request_tokens(sha256_hash, 2, [1, 2])
    names = [name.of_group(group) for group in range(8)]
    assert names[0] is name
    assert len({each.hash_value for each in names}) == 8


def test_a_window_of_one_token_sees_no_page_before_its_own():
    assert [first_seen_page(length, 1, 4) for length in (0, 3, 4, 9)] == [0, 0, 1, 2]
    assert [first_seen_page(length, 6, 4) for length in (0, 8, 9, 13)] == [0, 0, 1, 2]
