"""Simon Willison's `llm`, by its own configuration file for servers of OpenAI's API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llm
import pytest

from tests.clients.support.shared import MODEL, QUESTION, Place

LIMITS: Any = {"temperature": 0, "max_tokens": 80}


@pytest.fixture
def model(v1: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: eagre\n  model_name: {MODEL}\n  api_base: {v1}\n  supports_tools: true\n  supports_schema: true\n"
    )
    return llm.get_model("eagre")


def test_a_plain_answer(model: Any) -> None:
    assert "Paris" in model.prompt(QUESTION, stream=False, **LIMITS).text()


def test_a_stream(model: Any) -> None:
    pieces = list(model.prompt(QUESTION, **LIMITS))
    assert len(pieces) > 3
    assert "Paris" in "".join(pieces)


def test_three_turns(model: Any) -> None:
    conversation = model.conversation()
    for question in (QUESTION, "And of Norway?", "Thank you."):
        assert conversation.prompt(question, **LIMITS).text()


def test_structured_output(model: Any) -> None:
    Place.model_validate_json(model.prompt(QUESTION, schema=Place, **LIMITS).text())


def test_a_tool_and_its_result(model: Any) -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"Sunny in {city}."

    conversation = model.conversation(tools=[weather])
    answer = conversation.prompt("How is the weather in Oslo?", **LIMITS)
    assert isinstance(answer.text(), str)
    for call in answer.tool_calls():  # only where this small model has chosen to call
        assert call.name == "weather"
    results = [llm.ToolResult(name="weather", output="Sunny.", tool_call_id="call_1")]
    assert conversation.prompt("Say it.", tool_results=results, **LIMITS).text()
