"""Texts that one step has to compute as a whole, within the token budget of a step."""

from math import inf

from engine.schedule.step_time.step_costs import StepWork
from engine.schedule.step_time.token_budget import TokenBudget


def budget(num_tokens: int, grain: int | None = 16) -> TokenBudget:
    return TokenBudget(num_tokens, 64, StepWork(), inf, grain=grain)


def test_texts_are_taken_until_the_budget_is_spent() -> None:
    spent = budget(64)
    assert [spent.take_whole(count) for count in (10, 20, 17, 5)] == [10, 20, 0, 5]
    assert spent.is_exhausted
    assert spent.take_whole(2) == 0


def test_the_first_text_of_a_step_always_fits() -> None:
    spent = budget(64)
    assert spent.take_whole(500) == 500
    assert spent.num_left == 0
    assert spent.take_whole(2) == 0


def test_a_device_that_pads_pays_for_whole_tiles() -> None:
    spent = budget(128, grain=None)
    assert [spent.take_whole(2) for _ in range(3)] == [2, 2, 0]
    assert spent.work.num_tiles == 2
