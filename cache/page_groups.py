"""Groups of layers that have pages of their own: pages of layers with a window are given back behind it.

The shape is that of vLLM's hybrid KV cache manager. A page has the keys and values of one group, and the groups have
equally many layers, so that one pool has pages for all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_GROUPS = 8  # each has a page table of its own
_MOST_GROWTH = 1.15  # of what a token takes, because groups are filled up to equal sizes


@dataclass(frozen=True)
class PageGroups:
    """The groups of one model."""

    windows: tuple[int, ...]  # of each group, tokens that its layers see, up to and with a query's own; 0: all
    of_layer: tuple[int, ...]  # the group of each layer
    places: tuple[int, ...]  # of each layer, its place in the pages of its group
    num_layers: int  # of a page; the last places of a group may be empty

    @property
    def num_groups(self) -> int:
        return len(self.windows)

    def longest_sequence(self, num_pages: int, page_size: int, max_step_tokens: int) -> int:
        """Tokens of the longest sequence that so many pages suffice for."""
        most = [most_pages(window, page_size, max_step_tokens) if window else num_pages for window in self.windows]
        lengths = range(num_pages // self.num_groups, num_pages + 1)  # in pages of each group
        num_fitting = bisect_right(lengths, num_pages, key=lambda length: sum(min(length, each) for each in most))
        return page_size * lengths[num_fitting - 1]


def group_layers(windows: Sequence[int], max_context: int) -> PageGroups | None:
    """The groups of layers with these windows, those that see all first; None where nothing can be given back.

    A window that holds `max_context` tokens is none. Layers in one group have the same window. The sizes are those with
    the fewest bytes for short and for long sequences, and none where that makes short ones much larger.
    """
    reaching = [0 if window >= max_context else window for window in windows]
    counts = Counter(reaching)
    if not any(reaching):
        return None
    best: tuple[int, int, int] | None = None
    for size in range(1, max(counts.values()) + 1):
        num_groups = {window: -(-count // size) for window, count in counts.items()}
        num_places = size * sum(num_groups.values())
        if sum(num_groups.values()) > MOST_GROUPS or num_places > _MOST_GROWTH * len(windows):
            continue
        cost = num_places * max(1, size * num_groups.get(0, 0))
        best = min(best or (cost, -size, size), (cost, -size, size))
    if best is None:
        return None
    size = best[2]
    of_group: list[int] = []
    of_layer, places = [0] * len(windows), [0] * len(windows)
    for window in sorted(counts):
        layers = [layer for layer, reach in enumerate(reaching) if reach == window]
        for position, layer in enumerate(layers):
            of_layer[layer], places[layer] = len(of_group) + position // size, position % size
        of_group += [window] * -(-len(layers) // size)
    return PageGroups(tuple(of_group), tuple(of_layer), tuple(places), size)


def most_pages(window: int, page_size: int, max_step_tokens: int) -> int:
    """Pages that a window and the tokens of a step reach into at most, and one more."""
    return -(-(window - 1 + max_step_tokens) // page_size) + 2


def first_seen_page(num_tokens: int, window: int, page_size: int) -> int:
    """The first page that the token behind the first `num_tokens` ones, or a later one, sees."""
    return max(0, num_tokens - window + 1) // page_size if window else 0


def longest_run(num_pages: int, windows: Sequence[int], is_there: Callable[[int, int], bool]) -> int:
    """Of the first `num_pages` pages, those before the first that a group without a window lacks.

    Args:
        windows: of each group.
        is_there: whether the page with an index in a group, given in this order, can be had.
    """
    for group, window in enumerate(windows):
        if not window:
            num_pages = next((index for index in range(num_pages) if not is_there(index, group)), num_pages)
    return num_pages


def longest_prefix(num_pages: int, windows: Sequence[int], page_size: int, is_there: Callable[[int, int], bool]) -> int:
    """Pages of the longest prefix whose last pages are there, as far as groups with a window see them.

    No page is looked up twice, and few of those before the prefix's last window are looked up at all.

    Args:
        num_pages: of the longest prefix that is wanted, as `longest_run` finds it for the groups without a window.
        windows, is_there: as in `longest_run`.
    """
    end = num_pages
    known = [end] * len(windows)  # the pages of each group from here to the end are there
    group = 0
    while group < len(windows):
        window = windows[group]
        first = first_seen_page(end * page_size, window, page_size)
        if not window or first >= known[group]:
            group += 1
            continue
        missing = next((index for index in range(first, min(known[group], end)) if not is_there(index, group)), None)
        known[group] = first
        if missing is not None:
            end, group = missing, 0
    return end
