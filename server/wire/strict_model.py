"""The base of every part of a request's body. Values are checked and never converted."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Unknown names are refused; "5" is not 5 and true is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
