"""The parameter `text` of the Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from server.protocol.base_models import StrictModel
from server.protocol.structured_outputs import NAME_PATTERN, JsonSchema, ResponseFormat


class TextFormat(StrictModel):
    """The Responses API's form of `response_format`; the parts of a schema are next to the type."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None  # pydantic has a `schema` of its own
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_where_it_is_asked_for(self) -> TextFormat:
        if self.type == "json_schema":
            missing = [name for name, value in (("name", self.name), ("schema", self.schema_)) if value is None]
            if missing:
                raise ValueError(f"text.format has no {missing[0]}; type json_schema needs one")
        elif self.schema_ is not None:
            raise ValueError(f"text.format has a schema, which type {self.type} does not take")
        return self

    def to_response_format(self) -> ResponseFormat:
        if self.schema_ is None or self.name is None:
            return ResponseFormat(type=self.type)
        schema = JsonSchema.model_validate(
            {"name": self.name, "description": self.description, "schema": self.schema_, "strict": self.strict}
        )
        return ResponseFormat(type="json_schema", json_schema=schema)

    def to_wire(self) -> dict[str, Any]:
        """The format in the response object."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "schema": self.schema_,
            "strict": self.strict,
        }


class TextConfig(StrictModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
