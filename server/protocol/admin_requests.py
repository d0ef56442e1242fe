"""The bodies of the admin routes."""

from server.protocol.base_models import StrictModel


class ModelBody(StrictModel):
    """The optional body of a call about one model."""

    model: str | None = None  # its name; None: the first


class SleepBody(ModelBody):
    """The body of /admin/sleep."""

    drop_weights: bool = False  # whether the device gives back the memory of the weights too


class ServeBody(StrictModel):
    """The body of POST /admin/models."""

    model: str  # the name of a built-in model or one of the Hub that has been fetched


class UpdateWeightsBody(ModelBody):
    """The body of /admin/update_weights."""

    path: str  # of a GGUF file or a folder, on the server's machine
    drain: bool = False  # whether to wait until the requests that have begun have ended


class AbortBody(StrictModel):
    """The body of /admin/abort."""

    request_id: str
