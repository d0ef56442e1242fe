"""Tests of when the validators of request bodies are built."""

import subprocess
import sys

from tests.patience import PROCESS_S

_SCRIPT = """
import server.http.app
from pydantic import BaseModel
from server.api.openai.chat_request import ChatCompletionRequest
from server.protocol.base_models import LenientModel, StrictModel, build_validators

def below(model: type[BaseModel]) -> list[type[BaseModel]]:
    return [model, *(deeper for child in model.__subclasses__() for deeper in below(child))]

models = {model for base in (StrictModel, LenientModel) for model in below(base)}
assert len(models) > 50
built = [model.__name__ for model in models if model.__pydantic_complete__]
assert len(built) < 5, built  # a part that pydantic needs for a discriminated union is built with it
request = ChatCompletionRequest.parse({"model": "m", "messages": [{"role": "user", "content": "Hi."}]})
assert request.messages[0].content == "Hi."
build_validators()
left = [model.__name__ for model in models if not model.__pydantic_complete__]
assert not left, left
"""


def test_validators_are_built_at_first_use_and_not_when_the_server_is_imported() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT], check=False, capture_output=True, text=True, timeout=PROCESS_S
    )
    assert ended.returncode == 0, ended.stderr
