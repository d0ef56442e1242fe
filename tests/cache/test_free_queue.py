"""The free queue behaves like a plain list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.free_queue import FreeCachePageQueue
from cache.page import CachePage

operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "appendleft", "append_early", "popleft", "popleft_n", "remove", "reorder"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(st.integers(0, 10), operations)
def test_the_queue_behaves_like_a_list(num_pages, script):
    pages = [CachePage(i) for i in range(num_pages)]
    queue, model, late, outside = FreeCachePageQueue(pages), list(pages), [], []
    for name, argument in script:
        if name == "append" and outside:
            page = outside.pop(argument % len(outside))
            queue.append(page)
            model.append(page)
            late.append(page)
        elif name == "append_early" and outside:
            page = outside.pop(argument % len(outside))
            queue.append_early_n([page])
            model.insert(next((at for at, each in enumerate(model) if each in late), len(model)), page)
        elif name == "appendleft" and outside:
            page = outside.pop(argument % len(outside))
            queue.appendleft_n([page])
            model.insert(0, page)
        elif name == "popleft" and model:
            page = queue.popleft()
            assert page is model.pop(0)
            outside.append(page)
        elif name == "popleft_n" and argument <= len(model):
            taken = queue.popleft_n(argument)
            assert taken == model[:argument]
            del model[:argument]
            outside += taken
        elif name == "remove" and model:
            page = model.pop(argument % len(model))
            queue.remove(page)
            outside.append(page)
        elif name == "reorder":
            model = model[argument:] + model[:argument]
            queue.reorder(model)
            late.clear()
        late = [page for page in late if page in model]
        assert queue.get_all_free_pages() == model
        assert queue.num_free_pages == len(model)


def test_more_pages_than_free_cannot_be_taken():
    page = CachePage(1)
    queue = FreeCachePageQueue([page])
    with pytest.raises(IndexError, match="2 free pages are asked for, 1 are left"):
        queue.popleft_n(2)
    assert queue.popleft() is page
    with pytest.raises(IndexError, match="no free page"):
        queue.popleft()
    with pytest.raises(ValueError, match="page 1 is not in the free queue"):
        queue.remove(page)


def test_a_page_is_in_the_queue_at_most_once():
    page = CachePage(1)
    queue = FreeCachePageQueue([page])
    with pytest.raises(ValueError, match="in the free queue already"):
        queue.append(page)
    assert queue.get_all_free_pages() == [page]


@pytest.mark.parametrize(
    ("change", "taken", "added", "allocates"),
    [
        (lambda queue, pages, _: queue.popleft_n(500), 500, 0, True),
        (lambda queue, pages, _: queue.popleft(), 1, 0, False),
        (lambda queue, pages, _: queue.remove(pages[0]), 1, 0, False),
        (lambda queue, pages, _: queue.reorder(pages), 0, 0, False),
        (lambda queue, _, others: queue.append(others[0]), 0, 1, False),
        (lambda queue, _, others: queue.append_n(others), 0, 2, False),
        (lambda queue, _, others: queue.append_early_n(others), 0, 2, False),
    ],
    ids=["popleft_n", "popleft", "remove", "reorder", "append", "append_n", "append_early_n"],
)
def test_what_fails_for_want_of_memory_changes_nothing(change, taken, added, allocates):
    memory = pytest.importorskip("_testcapi")  # not every build of Python has it
    for num_allocations in range(1000):  # that succeed before one fails
        pages = [CachePage(i) for i in range(600)]  # Python keeps no such number ready
        others = [CachePage(600), CachePage(601)]
        queue, is_done = FreeCachePageQueue(pages), False
        memory.set_nomemory(num_allocations, num_allocations + 1)
        try:
            change(queue, pages, others)
            is_done = True
        except MemoryError:
            pass
        finally:
            memory.remove_mem_hooks()
        expected = [*pages[taken:], *others[:added]] if is_done else pages
        assert queue.num_free_pages == len(expected)
        assert queue.get_all_free_pages() == expected
        queue.append_n([page for page in (*pages, *others) if page.prev_free_page is None])
        assert queue.num_free_pages == 602
        if is_done:
            break
    assert is_done
    assert num_allocations > 0 or not allocates  # a newer Python keeps used numbers ready, all that some changes need
