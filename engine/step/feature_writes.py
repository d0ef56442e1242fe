"""What the sampling features of an admitted request must find on the device before its first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from engine.schedule.request import Request
from sampling.host.params import SamplingParams
from sampling.host.usage import used_features
from sampling.processors.feature import Admission, StateShape
from sampling.state import row_of

_ANY_PARAMS = SamplingParams(allowed_token_ids=(0,))  # every feature can make a row of these


class FeatureWrite(NamedTuple):
    """A row of one feature's state."""

    name: str  # of the feature
    slot: int
    row: Any  # a tree of numpy arrays, as `row_of` makes it


def writes_of(request: Request, shape: StateShape) -> Iterator[FeatureWrite]:
    """Those of a request, which has a slot, from the tokens that are committed now."""
    token_ids = np.array(request.token_ids, np.int32)
    admission = Admission(request.params, token_ids, request.num_tokens_before_output, request.stop_ids)
    for name in used_features(request.params):
        yield FeatureWrite(name, request.slot, row_of(name, admission, shape))


def any_row(name: str, shape: StateShape) -> Any:
    """A row of a feature; only its nesting, shapes and types mean something."""
    return row_of(name, Admission(_ANY_PARAMS, np.zeros(1, np.int32), 1, frozenset()), shape)
