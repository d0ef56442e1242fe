"""The bodies of the routes of conversations."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr

from server.api.responses.input_items import InputItem, checked_items
from server.api.responses.responses_request import Metadata
from server.protocol.base_models import StrictModel
from server.protocol.unknown_fields import UnknownFields

MAX_NEW_ITEMS = 20  # that one request adds to a conversation

NewItems = Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_NEW_ITEMS), checked_items("items")]


class ConversationBody(StrictModel):
    """A body with strangers sorted out."""

    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Checks a decoded JSON body.

        Raises:
            ApiError, FieldError, ValidationError: it is not valid.
        """
        strangers = UnknownFields()
        parsed = cls.model_validate(strangers.sort_out(body, cls.model_fields, {}), context=strangers)
        parsed._ignored = tuple(strangers.ignored)
        return parsed

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names in the body that mean nothing to this server, by their paths."""
        return self._ignored


class NewConversation(ConversationBody):
    """What a conversation begins with."""

    items: NewItems | None = None
    metadata: Metadata | None = None


class ConversationChange(ConversationBody):
    """What a conversation is to be told by from now on."""

    metadata: Metadata | None


class AddedItems(ConversationBody):
    """What is added to a conversation."""

    items: NewItems
