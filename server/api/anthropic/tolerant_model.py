"""The base of every part of a Messages body."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TolerantModel(BaseModel):
    """Unknown names are passed over: Anthropic's clients send more of them with each version. Types are strict."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
