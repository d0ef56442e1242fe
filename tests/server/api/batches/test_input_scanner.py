"""A batch's file is read in pieces of any size, and what is wrong with it is said by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.api.batches import input_scanner
from server.api.batches.batch_lines import LineAnswer, LineError, LineRequest, error_line, token_counts
from server.api.batches.input_scanner import InputScanner
from server.protocol.errors import ApiError
from server.storage.batch_table import BatchLine, DuplicateId, TokenCounts

URL = "/v1/completions"


def line(custom_id: Any = "a", **changes: Any) -> bytes:
    value = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": "m", "prompt": "é"}} | changes
    return json.dumps({name: part for name, part in value.items() if part is not None}, ensure_ascii=False).encode()


def check_model(name: str | None) -> None:
    if name not in ("m", None):
        raise ApiError("there is no such model", code="model_not_found")


def scan(content: bytes, piece: int = 1 << 20, most: int = 1000) -> tuple[list[BatchLine], InputScanner]:
    scanner = InputScanner(URL, most, check_model)
    found: list[BatchLine] = []
    for start in range(0, len(content), piece):
        found += scanner.feed(content[start : start + piece])
    return found + scanner.finish(), scanner


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_split_finds_the_same_lines(end: bytes, mark: bytes) -> None:
    content = mark + line("a") + b"\r\n\n  \n" + line("b") + b"\n" + line("c") + end
    whole, scanner = scan(content)
    assert scanner.errors == []
    assert scanner.model == "m"
    assert [(found.number, found.custom_id) for found in whole] == [(1, "a"), (4, "b"), (5, "c")]
    for found in whole:
        request = LineRequest.parse(content[found.start : found.start + found.size])
        assert (request.custom_id, request.body["prompt"]) == (found.custom_id, "é")
    for piece in (1, 2, 3, 7, 50):
        assert scan(content, piece)[0] == whole


@pytest.mark.parametrize(
    ("second", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b'{"a": NaN}', "invalid_json_line", None),
        (b"[" * 900, "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (line(custom_id=None), "missing_required_parameter", "custom_id"),
        (line(body=None), "missing_required_parameter", "body"),
        (line(custom_id=1), "invalid_custom_id", "custom_id"),
        (line(custom_id=""), "invalid_custom_id", "custom_id"),
        (line(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/embeddings"), "mismatched_endpoint", "url"),
        (line(url=[1]), "invalid_url", "url"),
        (line(body=[]), "invalid_body", "body"),
        (line(body={"model": "n"}), "mismatched_model", "body.model"),
        (line(body={"model": 1}), "invalid_model", "body.model"),
        (line(body={"model": "m", "prompt": "x" * 1000}), "line_too_long", None),
    ],
)
def test_a_line_that_is_no_request_is_named(second: bytes, code: str, param: str | None) -> None:
    for piece in (1 << 20, 5):
        _, scanner = scan(line("first") + b"\n" + second, piece)
        assert [(error["code"], error["param"], error["line"]) for error in scanner.errors] == [(code, param, 2)]


def test_a_file_without_requests() -> None:
    for content in (b"", b"\n\n \n", b"\xef\xbb\xbf"):
        assert [error["code"] for error in scan(content)[1].errors] == ["empty_file"]


def test_an_unknown_model_is_an_error_of_the_first_line() -> None:
    _, scanner = scan(line(body={"model": "n"}) + b"\n" + line("b", body={"model": "n"}))
    assert [(error["code"], error["line"]) for error in scanner.errors] == [("model_not_found", 1)]


def test_a_long_line_ends_the_reading_before_it_ends() -> None:
    scanner = InputScanner(URL, 100, check_model)
    assert scanner.feed(b"x" * 101) == []
    assert scanner.is_given_up
    assert scanner.errors[0]["code"] == "line_too_long"
    assert scanner.feed(line()) == []


def test_errors_and_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    _, scanner = scan(b"{\n" * 50)
    assert len(scanner.errors) == input_scanner.MAX_ERRORS
    assert scanner.is_given_up
    monkeypatch.setattr(input_scanner, "MAX_LINES", 3)
    assert scan(b"\n".join(line(str(at)) for at in range(3)))[1].errors == []
    for content in (b"\n".join(line(str(at)) for at in range(4)), b"\n" * 7):
        assert [error["code"] for error in scan(content)[1].errors] == ["too_many_lines"]


def test_a_duplicate_is_named() -> None:
    _, scanner = scan(line())
    scanner.refuse(DuplicateId(7, "a"))
    assert (scanner.errors[0]["code"], scanner.errors[0]["line"]) == ("duplicate_custom_id", 7)


def test_many_values_in_one_line_are_refused() -> None:
    with pytest.raises(LineError, match="at most"):
        LineRequest.parse(line(body={"a": [[]] * 40_000}))


def test_lines_of_answers() -> None:
    answer = LineAnswer(200, "request", b'{"text":"tide"}').to_line("ann")
    assert answer.endswith(b"}\n")
    told = json.loads(answer)
    assert told["id"].startswith("batch_req_")
    assert {**told, "id": 0} == {
        "id": 0, "custom_id": "ann", "error": None,
        "response": {"status_code": 200, "request_id": "request", "body": {"text": "tide"}},
    }  # fmt: skip
    told = json.loads(error_line("ann", "batch_expired", "late"))
    assert (told["response"], told["error"]) == (None, {"code": "batch_expired", "message": "late"})
    assert LineAnswer(400, "request", b"{}").has_failed


def test_counts_of_every_routes_usage() -> None:
    chat = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}
    assert token_counts(chat) == TokenCounts(3, 1, 4, 0)
    responses = {"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 2}}
    assert token_counts(responses) == TokenCounts(3, 0, 4, 2)
    assert token_counts(None) == TokenCounts()
