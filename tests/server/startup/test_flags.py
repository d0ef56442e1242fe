"""Flags and variables made from any dataclass whose fields are settings."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

from engine.interface.setting import setting, settings_of
from server.startup.flags import add_flag, read


@dataclass(frozen=True)
class Lamp:
    num_watts: int = setting(40, "how bright", metavar="WATTS", variable="POWER")
    dims: bool = setting(True, "stay at full brightness", key="no_dimming")
    blinks: bool = setting(False, "go on and off")
    room: str | None = setting(None, "where it stands")


def given(*arguments: str, **environment: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    for declared in settings_of(Lamp).values():
        add_flag(parser, declared)
    return read(settings_of(Lamp).values(), vars(parser.parse_args(arguments)), environment)


def test_what_is_not_given_is_left_out() -> None:
    assert given() == {}


def test_a_flag_wins_over_its_variable() -> None:
    assert given("--num-watts", "60", EAGRE_NUM_WATTS="25", EAGRE_ROOM="hall") == {"num_watts": 60, "room": "hall"}


def test_a_variable_that_other_programs_read_too_counts_last() -> None:
    assert given(POWER="100") == {"num_watts": 100}
    assert given(POWER="100", EAGRE_NUM_WATTS="25") == {"num_watts": 25}
    assert given("--num-watts", "60", POWER="100") == {"num_watts": 60}
    with pytest.raises(ValueError, match="POWER is 'x'; it must be an integer"):
        given(POWER="x")


def test_a_switch_changes_the_default() -> None:
    assert given("--no-dimming", "--blinks") == {"dims": False, "blinks": True}
    assert given(EAGRE_NO_DIMMING="1", EAGRE_BLINKS="0") == {"dims": False, "blinks": False}
    assert given(EAGRE_NO_DIMMING="false") == {"dims": True}


def test_values_that_are_no_texts_are_taken_as_they_are() -> None:
    flags = {"num_watts": 75, "no_dimming": True, "room": None, "colour": "red"}
    assert read(settings_of(Lamp).values(), flags, {}) == {"num_watts": 75, "dims": False}


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (("--num-watts", "x"), {}, "--num-watts is 'x'; it must be an integer"),
        ((), {"EAGRE_NUM_WATTS": ""}, "EAGRE_NUM_WATTS is ''; it must be an integer"),
        ((), {"EAGRE_NO_DIMMING": "perhaps"}, "EAGRE_NO_DIMMING is 'perhaps'; it must be true or false"),
    ],
)
def test_a_text_that_cannot_be_read_names_its_source(
    arguments: tuple[str, ...], environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        given(*arguments, **environment)


def test_the_help_has_metavar_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        given("--help")
    shown = capsys.readouterr().out
    assert "--num-watts WATTS" in shown
    assert "how bright (default 40)" in shown
    assert "--room ROOM" in shown
    assert "where it stands\n" in shown
    assert "stay at full brightness\n" in shown
