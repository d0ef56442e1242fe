"""Settings: what a dataclass declares of its fields, how texts are read, what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from engine.interface.setting import NOT_EMPTY, Limit, at_least, check, from_to, one_of, setting, settings_of


@dataclass(frozen=True)
class Kettle:
    litres: float = setting(1.5, "how much it holds", limit=Limit(lambda litres: litres > 0, "it must be above 0"))
    num_cups: int | None = setting(None, "cups to fill", limit=from_to(1, 12), metavar="N")
    tea: str = setting("green", "what is brewed", limit=one_of("green", "black", "mint"))
    whistles: bool = setting(True, "keep quiet", key="silent")
    glows: bool = setting(False, "shine while it heats")
    guests: tuple[str, ...] = setting((), "who is coming")
    label: str | None = setting(None, "what is written on it", limit=NOT_EMPTY)
    serial_number: int = 0  # no setting

    def __post_init__(self) -> None:
        check(self)


SETTINGS = settings_of(Kettle)


def test_a_field_without_a_declaration_is_no_setting() -> None:
    assert list(SETTINGS) == ["litres", "num_cups", "tea", "whistles", "glows", "guests", "label"]


def test_what_is_not_said_follows_from_the_field() -> None:
    assert [SETTINGS[name].kind for name in SETTINGS] == [float, int, str, bool, bool, tuple, str]
    assert [SETTINGS[name].key for name in ("num_cups", "whistles")] == ["num_cups", "silent"]
    assert [SETTINGS[name].metavar for name in ("litres", "num_cups")] == ["LITRES", "N"]
    assert (SETTINGS["tea"].default, SETTINGS["tea"].summary) == ("green", "what is brewed")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("litres", "2", 2.0),
        ("num_cups", "3", 3),
        ("tea", "mint", "mint"),
        ("whistles", "yes", False),
        ("whistles", "0", True),
        ("glows", "on", True),
        ("glows", "", False),
        ("guests", " Ann,, Bo ", ("Ann", "Bo")),
    ],
)
def test_texts_are_read(name: str, text: str, value: object) -> None:
    assert SETTINGS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("litres", "much", "it must be a number"),
        ("num_cups", "2.5", "it must be an integer"),
        ("glows", "maybe", "it must be true or false"),
        ("whistles", "maybe", "it must be true or false"),
    ],
)
def test_a_text_of_another_form_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        SETTINGS[name].parse(text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"litres": 0}, "litres is 0; it must be above 0"),
        ({"litres": "1"}, "litres is '1'; it must be a number"),
        ({"litres": None}, "litres is None; it must be a number"),
        ({"num_cups": 13}, "num_cups is 13; it must be from 1 to 12"),
        ({"num_cups": 2.0}, "num_cups is 2.0; it must be an integer"),
        ({"num_cups": True}, "num_cups is True; it must be an integer"),
        ({"tea": "white"}, "tea is 'white'; it must be green, black or mint"),
        ({"tea": 7}, "tea is 7; it must be green, black or mint"),
        ({"whistles": 1}, "whistles is 1; it must be true or false"),
        ({"guests": ["Ann"]}, r"guests is \['Ann'\]; it must be a tuple of strings"),
        ({"label": ""}, "label is ''; it must not be empty"),
        ({"label": 5}, "label is 5; it must not be empty"),
    ],
)
def test_a_value_that_is_refused_is_named_with_its_limit(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        Kettle(**given)


def test_a_number_of_numpy_and_an_integer_for_a_float_are_accepted() -> None:
    kettle = Kettle(litres=np.float32(0.5), num_cups=np.int64(2))
    assert (kettle.litres, kettle.num_cups) == (0.5, 2)
    assert Kettle(litres=2).litres == 2


def test_a_limit_may_give_its_reason() -> None:
    assert at_least(2, "page 0 is the null page").demand == "it must be at least 2 (page 0 is the null page)"
    assert at_least(2).demand == "it must be at least 2"


def test_a_type_that_no_text_can_give_is_a_mistake_of_the_declaration() -> None:
    @dataclass
    class Wrong:
        table: bytes = setting(b"", "a table")

    with pytest.raises(TypeError, match="cannot be read from text"):
        settings_of(Wrong)
