"""Query parameters of GET routes: pages of a list, numbers and switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from server.protocol.errors import ApiError, invalid_value, shorten

T = TypeVar("T")

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


class ListQuery(NamedTuple):
    """The requested part of a list."""

    limit: int = DEFAULT_LIMIT
    after: str | None = None  # the id of the item before it
    is_ascending: bool = False  # from the oldest to the newest item

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> ListQuery:
        """Parses a query; raises ApiError for an invalid value."""
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid_value(f"order is {shorten(order)}; it must be asc or desc", "order")
        return cls(parse_number(query, "limit", 1, MAX_LIMIT, DEFAULT_LIMIT), query.get("after"), order == "asc")

    def page(self, items: Sequence[T], id_of: Callable[[T], str]) -> dict[str, Any]:
        """The page of `items`, ordered by creation, as a list object; raises ApiError for an unknown `after`."""
        ordered = list(items if self.is_ascending else reversed(items))
        start = 0
        if self.after is not None:
            start = next((at for at, item in enumerate(ordered, start=1) if id_of(item) == self.after), 0)
            if not start:
                raise ApiError(f"after is {shorten(self.after)}, which is no item of this list", param="after")
        data = ordered[start : start + self.limit]
        return {
            "object": "list",
            "data": data,
            "first_id": id_of(data[0]) if data else "",
            "last_id": id_of(data[-1]) if data else "",
            "has_more": start + self.limit < len(ordered),
        }


def parse_number(query: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    """A whole number of a query; raises ApiError where it is none, or outside its limits."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise invalid_value(f"{name} is {shorten(text)}; it must be a whole number from {least} to {most}", name)
    return int(text)


def parse_switch(query: Mapping[str, str], name: str) -> bool:
    """True or false of a query; false where it is not given. Raises ApiError where it is neither."""
    text = query.get(name, "false").lower()
    if text not in ("true", "false"):
        raise invalid_value(f"{name} is {shorten(text)}; it must be true or false", name)
    return text == "true"
