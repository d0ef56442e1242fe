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


class LoadAdapterBody(StrictModel):
    """The body of /v1/load_lora_adapter."""

    lora_name: str  # by which clients choose it, as they choose a model
    lora_path: str  # of a folder in PEFT's layout or a GGUF file, on the server's machine
    load_inplace: bool = False  # whether it may replace an adapter of this name
    base_model_name: str | None = None  # the model that gets it; None: the first


class UnloadAdapterBody(StrictModel):
    """The body of /v1/unload_lora_adapter."""

    lora_name: str
    lora_int_id: int | None = None  # vLLM's number of the adapter, which is not needed


class AbortBody(StrictModel):
    """The body of /admin/abort."""

    request_id: str
