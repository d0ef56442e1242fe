"""Default sampling parameters recommended by a model's makers, for requests that give none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import structlog

from sampling.host.params import InvalidParameter, SamplingParams

log: structlog.stdlib.BoundLogger = structlog.get_logger("eagre")

# Fields of SamplingParams. Those of a `generation_config.json` have the same names.
PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def sampling_defaults(sources: Iterable[tuple[str, Mapping[str, Any]]]) -> Mapping[str, Any]:
    """The fields of SamplingParams that the sources state; of two sources, the later one wins.

    An invalid value is left out and logged, because the model can be served without it.

    Args:
        sources: pairs of a source's name for the log and its values by the names in PARAMETERS.
    """
    defaults: dict[str, Any] = {}
    for source, values in sources:
        for name in PARAMETERS:
            value = values.get(name)
            if value is None:
                continue
            try:
                SamplingParams(**{name: value})
            except InvalidParameter as error:
                log.warning("sampling_default_ignored", source=source, reason=str(error))
            else:
                defaults[name] = value
    return MappingProxyType(defaults)
