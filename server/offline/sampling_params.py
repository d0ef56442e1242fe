"""The `SamplingParams` of the Python API: what they do not say is left to the model's makers, as with keywords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from sampling.host.params import SamplingParams as WholeParams

_NAMES = tuple(item.name for item in fields(WholeParams))


@dataclass(frozen=True, slots=True)
class SamplingParams(WholeParams):
    """The sampling parameters of one request, with their types and limits, checked; raises InvalidParameter.

    Those that are not given are the model's own, as where a keyword is not given; the defaults shown here hold where
    the model's makers recommend nothing.
    """

    given: frozenset[str] = field(init=False, repr=False, compare=False)  # names of parameters

    if not TYPE_CHECKING:  # which reads the types of the parameters from __init__

        def __new__(cls, *values: Any, **named: Any) -> SamplingParams:
            made = object.__new__(cls)
            object.__setattr__(made, "given", frozenset((*_NAMES[: len(values)], *named)))
            return made


def over_defaults(chosen: WholeParams, defaults: Mapping[str, Any]) -> WholeParams:
    """All parameters of `chosen`, with those of `defaults` where it is silent."""
    if not isinstance(chosen, SamplingParams):
        return chosen
    values = {name: getattr(chosen, name) for name in _NAMES}
    values |= {name: value for name, value in defaults.items() if name not in chosen.given}
    return WholeParams(**values)
