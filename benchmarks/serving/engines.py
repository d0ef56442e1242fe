"""Models and engines loaded in this process, with progress bars, and a client with a loop of its own."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.config import EngineConfig
from server.model_sources.cache_folder import cache_folder
from server.model_sources.model_store import ensure_model
from server.startup.progress import ProgressReporter

COMPILED = str(cache_folder() / "compiled")  # the compilation cache of `eagre serve`


def model_path(model: str) -> Path:
    """The file or folder of a model, fetched if it is a built-in one or one of the Hub."""
    with ProgressReporter() as progress:
        return ensure_model(model, progress)


def load_engine(model: str, config: EngineConfig) -> Engine:
    with ProgressReporter() as progress:
        return Engine.load(ensure_model(model, progress), config, progress)


@contextlib.contextmanager
def running_client(client: EngineClient) -> Iterator[asyncio.Runner]:
    """Starts the client in a loop that runs what is given to the runner, and shuts it down after the block."""
    with asyncio.Runner() as runner:
        client.start(runner.get_loop())
        try:
            yield runner
        finally:
            client.shutdown()
