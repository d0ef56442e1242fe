"""The request bodies of the Conversations API."""

from typing import Annotated

from pydantic import Field

from server.api.responses.input_items import InputItem, checked_items
from server.api.responses.responses_request import Metadata
from server.protocol.base_models import RequestBody

MAX_NEW_ITEMS = 20  # that one request adds to a conversation

NewItems = Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_NEW_ITEMS), checked_items("items")]


class NewConversation(RequestBody):
    """The body that creates a conversation."""

    items: NewItems | None = None
    metadata: Metadata | None = None


class ConversationChange(RequestBody):
    """The body that changes a conversation's metadata."""

    metadata: Metadata | None


class AddedItems(RequestBody):
    """The body that adds items to a conversation."""

    items: NewItems
