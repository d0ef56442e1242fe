"""The flags of `eagre deploy`: how many replicas they mean, and what does not go together."""

from __future__ import annotations

import argparse

import pytest

from server.router.ray.plan import DEFAULT_MAX_REPLICAS, DeployPlan
from server.startup.settings import ServerSettings, SettingsError


def plan(*arguments: str, **environment: str) -> DeployPlan:
    parser = argparse.ArgumentParser()
    DeployPlan.add_flags(parser)
    return DeployPlan.from_sources(vars(parser.parse_args(arguments)), environment)


@pytest.mark.parametrize(
    ("arguments", "least", "most"),
    [
        ((), 1, 1),
        (("--replicas", "3"), 3, 3),
        (("--min-replicas", "2"), 2, DEFAULT_MAX_REPLICAS),
        (("--min-replicas", "9"), 9, 9),
        (("--max-replicas", "5"), 1, 5),
        (("--min-replicas", "2", "--max-replicas", "6"), 2, 6),
    ],
)
def test_the_number_of_replicas_is_fixed_or_has_bounds(arguments: tuple[str, ...], least: int, most: int) -> None:
    found = plan(*arguments)
    assert (found.least, found.most) == (least, most)
    assert found.is_autoscaled == bool(arguments and arguments[0] != "--replicas")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replicas", "2", "--max-replicas", "3"), "--replicas is 2, a fixed number; it does not go with --min"),
        (
            ("--min-replicas", "3", "--max-replicas", "2"),
            "--min-replicas is 3; it must be at most --max-replicas, which is 2",
        ),
        (("--replicas", "0"), "--replicas is 0; it must be from 1 to 10000"),
        (("--replicas", "two"), "--replicas is 'two'; it must be an integer"),
        (("--target-queued-tokens", "0"), "--target-queued-tokens is 0; it must be at least 1"),
        (("--replica-cpus", "-1"), "--replica-cpus is -1.0; it must be from 0 to 10000"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        plan(*arguments)
    assert str(refused.value).startswith(message)


def test_a_flag_wins_over_variables_that_do_not_go_with_it() -> None:
    assert plan(EAGRE_MAX_REPLICAS="7").most == 7
    assert plan("--replicas", "2", EAGRE_MAX_REPLICAS="7").most == 2
    assert plan("--max-replicas", "3", EAGRE_REPLICAS="2").most == 3


def test_no_flag_of_serve_has_another_meaning() -> None:
    parser = argparse.ArgumentParser()
    ServerSettings.add_flags(parser)
    DeployPlan.add_flags(parser)  # argparse refuses a flag that is there
    assert parser.parse_args(["--replicas", "2", "--port", "9"]).port == "9"
