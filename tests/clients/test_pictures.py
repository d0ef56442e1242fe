"""Pictures that the libraries of others send, on a server whose model sees and names their colours."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import litellm
import pytest
from anthropic import Anthropic
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from ollama import Client
from openai import OpenAI

from tests.clients.support.scripted_process import scripted_process

MODEL = "fake"
KEY = {"api_key": "none"}


def png_of(*colour: int) -> bytes:
    """A square of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + bytes(colour) * 8 for _ in range(8))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


RED, BLUE = (base64.b64encode(png_of(*colour)).decode() for colour in ((255, 0, 0), (0, 0, 255)))
RED_URL, BLUE_URL = (f"data:image/png;base64,{data}" for data in (RED, BLUE))
CHAT: list[Any] = [
    {"type": "text", "text": "What do you see?"},
    {"type": "image_url", "image_url": {"url": RED_URL, "detail": "high"}},
    {"type": "image_url", "image_url": {"url": BLUE_URL}},
]
SEEN, SEEN_RED = "I see red and blue.", "I see red."


@pytest.fixture(scope="module")
def seeing() -> Iterator[str]:
    """The address of a server whose model sees."""
    with scripted_process("sees") as url:
        yield url


@pytest.fixture(scope="module")
def openai(seeing: str) -> OpenAI:
    return OpenAI(base_url=seeing + "/v1", max_retries=0, **KEY)


@pytest.fixture(scope="module")
def anthropic(seeing: str) -> Anthropic:
    return Anthropic(base_url=seeing, max_retries=0, **KEY)


def test_openais_chat(openai: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": CHAT}]
    answer = openai.chat.completions.create(model=MODEL, messages=messages)
    assert answer.choices[0].message.content == SEEN
    with openai.chat.completions.stream(model=MODEL, messages=messages) as stream:
        assert stream.get_final_completion().choices[0].message.content == SEEN


def test_openais_responses(openai: OpenAI) -> None:
    content = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": RED_URL, "detail": "auto"}]
    asked: Any = [{"role": "user", "content": content}]
    answer = openai.responses.create(model=MODEL, input=asked)
    assert answer.output_text == SEEN_RED
    with openai.responses.stream(model=MODEL, input=asked) as stream:
        assert stream.get_final_response().output_text == SEEN_RED


def test_openais_result_of_a_call(openai: OpenAI) -> None:
    asked: Any = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": RED_URL}]},
    ]
    assert openai.responses.create(model=MODEL, input=asked).output_text == SEEN_RED


def block(data: str) -> Any:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def test_anthropics_messages(anthropic: Anthropic) -> None:
    messages: Any = [{"role": "user", "content": [block(RED), block(BLUE), {"type": "text", "text": "What?"}]}]
    answer = anthropic.messages.create(model=MODEL, max_tokens=50, messages=messages)
    assert answer.content[0].type == "text"
    assert answer.content[0].text == SEEN
    counted = anthropic.messages.count_tokens(model=MODEL, messages=messages)
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_anthropics_result_of_a_tool(anthropic: Anthropic) -> None:
    messages: Any = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block(BLUE)]}]},
    ]
    with anthropic.messages.stream(model=MODEL, max_tokens=50, messages=messages) as stream:
        assert "".join(stream.text_stream) == "I see blue."


@pytest.mark.parametrize("is_responses", [False, True])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": RED_URL}},
        {"type": "image", "base64": RED, "mime_type": "image/png"},
    ],
)
def test_langchain(seeing: str, is_responses: bool, part: dict[str, Any]) -> None:
    model = ChatOpenAI(model=MODEL, base_url=seeing + "/v1", use_responses_api=is_responses, **KEY)
    message = HumanMessage(content=[{"type": "text", "text": "What?"}, part])
    assert model.invoke([message]).text == SEEN_RED


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_litellm(seeing: str, provider: str) -> None:
    base = seeing if provider == "anthropic" else seeing + "/v1"
    messages = [{"role": "user", "content": CHAT}]
    answer = litellm.completion(f"{provider}/{MODEL}", messages=messages, api_base=base, max_tokens=50, **KEY)
    assert answer.choices[0].message.content == SEEN


def test_ollama(seeing: str) -> None:
    message = {"role": "user", "content": "What?", "images": [png_of(255, 0, 0)]}
    assert Client(host=seeing).chat(MODEL, messages=[message]).message.content == SEEN_RED
