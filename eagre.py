"""Eagre in Python: a model in this process, without a server.

    from eagre import LLM, SamplingParams

    with LLM("smollm2-135m-instruct") as llm:
        print(llm.generate("Once upon a time", SamplingParams(max_tokens=64)).text)

This module is the public API: names imported from here stay valid when a file of Eagre moves. See docs/offline.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.interface.config import EngineConfig, ModelInfo
from engine.interface.errors import ModelError
from engine.interface.types import DeadEnd, EngineBusy, EngineError, EngineStats, FinishReason, TokenLogprobs
from sampling.host.params import InvalidParameter
from server.model_sources.cache_folder import ModelStoreError
from server.offline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from server.generation.answers import Answer, Usage
    from server.generation.output_sequence import Delta
    from server.offline.batch import BatchProgress, Output
    from server.offline.llm import LLM
    from server.offline.saved_config import SavedLLMError
    from server.offline.text_stream import TextStream

    __version__: str

__all__ = [
    "LLM",
    "Answer",
    "BatchProgress",
    "DeadEnd",
    "Delta",
    "EngineBusy",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "InvalidParameter",
    "ModelError",
    "ModelInfo",
    "ModelStoreError",
    "Output",
    "SamplingParams",
    "SavedLLMError",
    "TextStream",
    "TokenLogprobs",
    "Usage",
    "__version__",
]

# These modules are imported when one of their names is first asked for, because what they need takes most of a
# second to import. Type checkers read the imports above instead.
_IMPORTED_LATE = {
    "LLM": "server.offline.llm",
    "Answer": "server.generation.generation",
    "BatchProgress": "server.offline.batch",
    "Delta": "server.generation.output_sequence",
    "Output": "server.offline.batch",
    "SavedLLMError": "server.offline.saved_config",
    "TextStream": "server.offline.text_stream",
    "Usage": "server.generation.generation",
}


def __getattr__(name: str) -> Any:
    """Raises AttributeError if the module has no such name."""
    if name == "__version__":
        from server.startup.version import eagre_version

        value: Any = eagre_version()
    elif name in _IMPORTED_LATE:
        value = getattr(import_module(_IMPORTED_LATE[name]), name)
    else:
        raise AttributeError(f"module 'eagre' has no attribute {name!r}")
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
