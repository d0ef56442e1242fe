"""The bodies of an operator's requests."""

from __future__ import annotations

from server.protocol.base_models import StrictModel


class ModelBody(StrictModel):
    """The body of a call about one model, which may as well have none."""

    model: str | None = None  # its name; None: the first


class SleepBody(ModelBody):
    """How much memory is given back."""

    drop_weights: bool = False  # whether the device gives back the memory of the weights too


class UpdateWeightsBody(ModelBody):
    """Where the new weights are."""

    path: str  # of a GGUF file or a folder, on the server's machine
    drain: bool = False  # whether to wait until the requests that have begun have ended


class AbortBody(StrictModel):
    """Which requests end."""

    request_id: str
