"""What the tests of this room share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engine.step.page_memory import PageMemory
from tests.engine.step.untouched_pages import Begin, Pages, as_kv


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Makes the memory of pages, and closes it in the end."""
    made: list[PageMemory] = []

    def make(pages: Pages, *wait: Callable[[], object]) -> PageMemory:
        made.append(PageMemory(as_kv(pages), *wait))
        return made[-1]

    yield make
    for memory in made:
        memory.close()
        assert memory._thread is None or not memory._thread.is_alive()
