"""From the name of a model to a loaded engine and its text side."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from engine.border.config import EngineConfig
from engine.border.errors import ModelError
from engine.border.types import Progress
from server.grammar.vocabulary import GrammarVocabulary
from server.startup.model_store import ensure_model
from server.startup.settings import ServerSettings
from server.text.text_model import TextModel

if TYPE_CHECKING:
    from engine.client import EngineClient

T = TypeVar("T")


class LoadedModel(NamedTuple):
    engine: EngineClient  # not yet started
    text_model: TextModel
    vocabulary: GrammarVocabulary | None = None  # for grammars; None: made when one is compiled


def load_model(settings: ServerSettings, progress: Progress) -> LoadedModel:
    """Pulls the model where it is missing, reads it, compiles it. Blocks; call it in a thread.

    Raises:
        ModelStoreError, ValueError, OSError: the model cannot be had or served, as the message says.
    """
    loaded = load_with(settings.model, settings.engine_config, progress)
    tokenizer = loaded.text_model.tokenizer
    if not tokenizer.eos_token_ids:
        return loaded  # a grammar needs an end token; who asks for one is told
    # Now, because all threads stand still for it, and nobody is waiting for a token yet.
    return loaded._replace(vocabulary=GrammarVocabulary(tokenizer, loaded.engine.model_info.vocab_size))


def load_with(model: str, configure: Callable[[tuple[int, ...]], EngineConfig], progress: Progress) -> LoadedModel:
    """`load_model` with another source of configuration. Raises what that raises.

    Args:
        model: name of a built-in model, or path of a GGUF file or a Hugging Face folder.
        configure: from the model's end tokens to the engine's configuration.
    """
    path = ensure_model(model, progress)
    try:
        text_model = TextModel.load(path)
    except ModelError:
        from engine.client import EngineClient

        # Of an architecture that is not served, other files and fields may be missing too.
        EngineClient.refuse_unserved(path)
        raise
    # Here and not above: it brings JAX, and the server listens before that is loaded.
    from engine.client import EngineClient

    config = configure(tuple(text_model.tokenizer.eos_token_ids))
    return LoadedModel(EngineClient.load(path, config, progress), text_model)


def run_in_daemon_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Like `asyncio.to_thread`, but a signal need not wait for the thread's end to end the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the future is awaited
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="load", daemon=True).start()
    return future
