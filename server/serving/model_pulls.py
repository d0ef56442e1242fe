"""Fetches models into the caches and deletes them, for administrators of a running server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import is_from_hub, pull_model, resolve_model
from server.protocol.errors import ApiError, shorten
from server.startup.logs import log

INTERVAL_S = 0.25  # between two reports of progress
MAX_NAME_CHARS = 256
_HUB_PREFIXES = ("hf.co/", "huggingface.co/")  # of Ollama's names for models of the Hub


class PullProgress(NamedTuple):
    """How far a pull is, in bytes; a `total` of 0 is not known yet."""

    stage: str
    completed: int
    total: int


_BEGUN = PullProgress("pulling manifest", 0, 0)


class ModelPulls:
    """The pulls of a server, of which one runs at a time.

    A pull goes on when its client has left; the next one of the same model finds what has come.
    """

    def __init__(self) -> None:
        self._running: str | None = None
        self._latest = _BEGUN

    def progress_of(self, name: str) -> PullProgress | None:
        """How far the pull of a model is; None where none runs."""
        return self._latest if name == self._running else None

    async def pull(self, name: str) -> AsyncIterator[PullProgress]:
        """Fetches a built-in model or one of the Hub, and tells how far it is a few times a second.

        Raises:
            ApiError: 404, there is no such model; 409, another pull runs; 502, it cannot be fetched.
        """
        name = fetched_name(name)
        if self._running is not None:
            raise ApiError(f"{self._running} is being pulled; try again later", status=409, code="pull_running")
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        failures = list[Exception]()
        self._running, self._latest = name, _BEGUN

        def note(stage: str, completed: int, total: int) -> None:
            self._latest = PullProgress(stage, completed, total)

        def finish() -> None:
            self._running = None
            done.set()

        def work() -> None:
            try:
                pull_model(name, note)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
                failures.append(error)
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:  # the server has ended
                return

        # No thread of a pool: the end of the process would wait for it.
        threading.Thread(target=work, name="pull", daemon=True).start()
        told: PullProgress | None = None
        while not done.is_set():
            if self._running == name and self._latest != told:
                told = self._latest
                yield told
            try:
                await asyncio.wait_for(done.wait(), INTERVAL_S)
            except TimeoutError:
                continue
        if not failures:
            log.info("model_pulled", model=name)
            return
        (failure,) = failures
        is_foreseen = isinstance(failure, ModelStoreError)
        log.error("model_not_pulled", model=name, reason=str(failure), exc_info=None if is_foreseen else failure)
        reason = str(failure) if is_foreseen else type(failure).__name__
        raise ApiError(f"{name} cannot be pulled: {reason}", status=HTTPStatus.BAD_GATEWAY, code="pull_failed")


def fetched_name(name: str) -> str:
    """The name of a model that can be fetched; raises ApiError, 404, for any other."""
    for prefix in _HUB_PREFIXES:
        name = name.removeprefix(prefix)
    if len(name) <= MAX_NAME_CHARS and (name in BUILTIN_MODELS or is_from_hub(name)):
        return name
    raise ApiError(
        f"there is no model {shorten(name)} to fetch; built-in models are {', '.join(BUILTIN_MODELS)}, and owner/name "
        "is one of the Hub",
        status=HTTPStatus.NOT_FOUND,
        param="model",
        code="model_not_found",
    )


def delete_model(name: str, served: Iterable[str]) -> None:
    """Deletes a fetched model, unless it is one of the `served` values of `--model`. It blocks.

    Raises:
        ApiError: 404, it is not here; 409, it is served.
    """
    from server.model_sources.removal import remove_model  # the Hub's library takes long to import

    name = fetched_name(name)
    path = resolve_model(name)
    if path is not None and path.resolve() in {found.resolve() for found in map(_path_of, served) if found}:
        raise ApiError(f"{shorten(name)} is served; stop serving it first", status=409, code="model_in_use")
    try:
        remove_model(name)
    except ModelStoreError as error:
        raise ApiError(str(error), status=HTTPStatus.NOT_FOUND, param="model", code="model_not_found") from error


def _path_of(value: str) -> Path | None:
    try:
        return resolve_model(value)
    except ModelStoreError:
        return None  # a file that is gone
