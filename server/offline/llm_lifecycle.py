"""The base class of `LLM`: everything but generating, such as pause, sleep and close."""

import weakref
from pathlib import Path
from typing import Self

from engine.interface.config import EngineConfig, ModelInfo
from engine.interface.types import EngineStats
from server.model_sources.model_store import ensure_model
from server.offline.offline_engine import OfflineEngine
from server.startup.model_loader import LoadedModel
from server.startup.progress import silent


class LLMLifecycle:
    """A loaded model that can be paused, inspected and closed, by `with` or when it is dropped.

    Every method but `close` raises EngineError once the model is closed or its engine has failed. The constructor
    starts the engine of `loaded`, for which `num_programs` were compiled.
    """

    def __init__(self, loaded: LoadedModel, model: str, config: EngineConfig, num_programs: int) -> None:
        self.model = model
        self.config = config
        self.model_info: ModelInfo = loaded.engine.model_info
        self._num_programs = num_programs
        self._running_engine = OfflineEngine(loaded)
        # At the interpreter's exit the engine closes itself, and waits for that.
        weakref.finalize(self, self._running_engine.close_soon).atexit = False

    def __repr__(self) -> str:
        info = self.model_info
        return f"{type(self).__name__}({self.model!r}, dtype={info.dtype!r}, max_model_len={info.max_model_len})"

    def precompile(self) -> int:
        """The number of compiled programs. Loading compiles or finds them all, so this returns at once."""
        self._engine.check_open()
        return self._num_programs

    def pause(self) -> None:
        """Stops computing once nothing is in flight; calls that generate wait until `resume`."""
        self._engine.operate(lambda client: client.lifecycle.pause())

    def resume(self) -> None:
        """Continues after `pause`; raises EngineBusy where the engine is asleep."""
        self._engine.operate(lambda client: client.lifecycle.resume())

    def sleep(self, *, drop_weights: bool = False) -> None:
        """Frees the memory of the pages, with `drop_weights` the device's memory of the weights too."""
        self._engine.operate(lambda client: client.lifecycle.sleep(drop_weights=drop_weights))

    def wake(self) -> None:
        """Continues after `sleep`."""
        self._engine.operate(lambda client: client.lifecycle.wake())

    def reset_prefix_cache(self) -> bool:
        """Drops every cached prefix; False, and nothing is dropped, while requests run."""
        return self._engine.operate(lambda client: client.lifecycle.reset_prefix_cache())

    def update_weights(self, model: str | Path, *, drain: bool = False) -> None:
        """Takes the weights of another model of the same shape; the tokenizer stays.

        `drain` waits for running requests to end, instead of failing because of them.

        Raises:
            ModelStoreError: the model cannot be found or downloaded.
            ModelError: it cannot replace the first.
            EngineBusy: requests are running and may not or cannot end first, or the engine is asleep.
        """
        path = ensure_model(str(model), silent)
        self._engine.operate(lambda client: client.lifecycle.update_weights(path, drain=drain))
        self.model = str(model)

    def stats(self) -> EngineStats:
        """The engine's counters since the start and gauges of this moment."""
        return self._engine.stats()

    def close(self) -> None:
        """Ends calls of other threads with an EngineError, stops the engine, frees its threads. Idempotent."""
        self._running_engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def _engine(self) -> OfflineEngine:
        """Raises EngineError where it has failed or was closed."""
        self._running_engine.check_open()
        return self._running_engine
