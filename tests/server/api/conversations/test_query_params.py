"""Pages of lists, and numbers and switches of queries."""

from __future__ import annotations

from operator import itemgetter

import pytest

from server.api.conversations.query_params import ListQuery, parse_number, parse_switch
from server.protocol.errors import ApiError

ITEMS = [{"id": name} for name in "abcde"]


def ids(query: dict[str, str]) -> tuple[str, bool]:
    page = ListQuery.parse(query).page(ITEMS, itemgetter("id"))
    names = "".join(item["id"] for item in page["data"])
    assert (page["first_id"], page["last_id"]) == (names[:1], names[-1:])
    return names, page["has_more"]


def test_pages_follow_one_another_in_either_order() -> None:
    assert ids({}) == ("edcba", False)
    assert ids({"limit": "2"}) == ("ed", True)
    assert ids({"limit": "2", "after": "d"}) == ("cb", True)
    assert ids({"order": "asc", "limit": "3", "after": "b"}) == ("cde", False)
    assert ids({"order": "asc", "after": "e"}) == ("", False)


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": "0"}, "limit"), ({"limit": "101"}, "limit"), ({"limit": "²"}, "limit"), ({"limit": "9" * 30}, "limit"),
     ({"order": "up"}, "order"), ({"after": "x"}, "after")],
)  # fmt: skip
def test_what_a_query_cannot_mean_is_named(query: dict[str, str], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        ids(query)
    assert refusal.value.param == param


def test_numbers_and_switches() -> None:
    assert (parse_number({}, "n", 0, 9, 4), parse_number({"n": "7"}, "n", 0, 9, 4)) == (4, 7)
    assert [parse_switch({"s": text}, "s") for text in ("true", "False")] == [True, False]
    assert parse_switch({}, "s") is False
    with pytest.raises(ApiError, match="true or false"):
        parse_switch({"s": "1"}, "s")
