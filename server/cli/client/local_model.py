"""A model in the command's own process, for commands without a server."""

import os
from collections.abc import Generator
from typing import Any

from pydantic import ValidationError

from sampling.host.params import MAX_INT32, InvalidParameter, SamplingParams
from server.api.openai.chat import ChatCall
from server.api.openai.completions import CompletionCall
from server.cli.client.errors import NoAnswer
from server.generation.generation_request import GenerationRequest
from server.offline.offline_engine import OfflineEngine
from server.protocol.errors import ApiError, to_api_error
from server.startup import model_loader
from server.startup.logs import set_up_logs
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings


class LocalModel:
    """An engine that answers bodies of `/v1/chat/completions` and `/v1/completions`; raises NoAnswer.

    The model is loaded on construction, with progress bars on standard error.
    """

    def __init__(self, model: str | None) -> None:
        set_up_logs("warning", "console")
        try:
            # One answer at a time needs one slot, and with one slot there are few shapes to compile.
            settings = ServerSettings.from_sources({"model": model, "max_num_seqs": 1}, os.environ)
            with ProgressReporter() as progress:
                loaded = model_loader.load_model(settings, progress)
            self.name = loaded.text_model.name
            self.sees = loaded.text_model.pictures is not None
            self._engine = OfflineEngine(loaded)
        except (OSError, ValueError, RuntimeError) as error:
            raise NoAnswer(str(error)) from error

    @staticmethod
    def check(body: dict[str, Any]) -> None:
        """Validates a body before a model is loaded for it; raises NoAnswer that names a wrong parameter."""
        request = _request_of(body)
        try:
            if request.max_tokens is not None and request.max_tokens < 1:
                raise NoAnswer(f"{request.max_tokens_parameter} is {request.max_tokens}; it must be at least 1")
            SamplingParams(**{"max_tokens": MAX_INT32, **request.sampling})
        except InvalidParameter as error:
            raise NoAnswer(str(error)) from error

    def answer(self, body: dict[str, Any]) -> Generator[str, None, None]:
        """The pieces of the answer's text; closing the iterator aborts the answer."""
        request = _request_of(body)
        try:
            with self._engine.stream(self._engine.prepare(request)) as stream:
                for delta in stream:
                    yield delta.text
        except ApiError as error:
            raise NoAnswer(error.message) from error
        except (OSError, ValueError, RuntimeError) as error:
            raise NoAnswer(str(error)) from error

    def close(self) -> None:
        self._engine.close()


def _request_of(body: dict[str, Any]) -> GenerationRequest:
    try:
        return (ChatCall if "messages" in body else CompletionCall).parse(body).request
    except (ApiError, ValidationError) as error:
        raise NoAnswer(to_api_error(error).message) from error
