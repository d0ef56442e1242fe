"""What one tenant takes of a limit leaves room for others, and the limit holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission.admission_budget import FairLimit
from server.admission.keyring import NOBODY
from server.protocol.errors import ApiError

# A tenant, and how much it asks for, or minus as much where it gives something back.
STEPS = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cat", NOBODY]), st.integers(-4, 8)), max_size=60)


def take_all(limit: FairLimit, tenant: str) -> int:
    """Takes one after the other until there is no room; returns how many."""
    number = 0
    while limit.has_room_for(tenant):
        limit.take(tenant)
        number += 1
    return number


def test_whoever_takes_what_it_can_leaves_half_to_others() -> None:
    limit = FairLimit(1024)
    assert [take_all(limit, tenant) for tenant in ("ann", "bob", "cat")] == [512, 256, 128]
    limit.give_back("ann", 512)
    assert take_all(limit, "cat") == 256  # half of what Bob leaves, with the 128 that it had


def test_who_is_told_from_nobody_may_take_all() -> None:
    limit = FairLimit(1024)
    assert take_all(limit, NOBODY) == 1024
    assert not limit.has_room_for("ann")


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_first_thing_of_a_tenant_needs_room_alone(size: int) -> None:
    limit = FairLimit(size)
    assert limit.has_room_for("ann", size)
    taken = take_all(limit, "ann")
    assert taken == max(1, size // 2)
    assert limit.has_room_for("bob", size - taken) or size == taken
    limit.take("bob", size - taken)
    assert not limit.has_room_for("cat")


def test_one_thing_may_come_in_pieces() -> None:
    limit = FairLimit(10)
    limit.take("ann", 4)
    for had in range(6):
        assert limit.has_room_for("bob", had=had)
        limit.take("bob")
    assert not limit.has_room_for("bob", had=6)


@given(st.integers(1, 40), STEPS)
def test_the_limit_holds_and_a_newcomer_finds_what_is_left(size: int, steps: list[tuple[str, int]]) -> None:
    limit, held = FairLimit(size), dict.fromkeys(("ann", "bob", "cat", NOBODY), 0)
    for tenant, amount in steps:
        others = sum(held.values()) - held[tenant]
        if amount <= 0:
            given_back = min(-amount, held[tenant])
            if given_back:
                limit.give_back(tenant, given_back)
                held[tenant] -= given_back
            continue
        fits = held[tenant] + amount + others <= size
        is_fair = held[tenant] == 0 or tenant == NOBODY or held[tenant] + amount <= (size - others) / 2
        assert limit.has_room_for(tenant, amount) == (fits and is_fair)
        if fits and is_fair:
            limit.take(tenant, amount)
            held[tenant] += amount
        assert limit.total == sum(held.values()) <= size
        assert {name: limit.held_by(name) for name in held} == held


def test_what_is_held_is_given_back() -> None:
    limit = FairLimit(2)

    def refusal() -> ApiError:
        return ApiError(f"{limit.total} are held")

    with pytest.raises(ZeroDivisionError), limit.hold(refusal):
        raise ZeroDivisionError
    with limit.hold(refusal), limit.hold(refusal):
        with pytest.raises(ApiError, match="2 are held"), limit.hold(refusal):
            pass
        assert limit.total == 2
    assert limit.total == 0
