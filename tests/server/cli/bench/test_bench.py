"""`eagre bench` against a server with known answers, from the command line to the files."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from server.cli import main as cli
from tests.fakes.stub_server import BROKEN, StubServer
from tests.patience import PATIENCE_S


async def bench(*arguments: str) -> int:
    """Runs the command in a thread of its own, as it would run in a process."""
    return await asyncio.to_thread(cli.main, ["bench", *arguments])


async def test_table_and_both_files(stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "figures.json", tmp_path / "report.html"
    status = await bench(
        *f"--url {stub.url} --concurrency 1 2 --requests 4 --output-tokens 9 --input-tokens 20".split(),
        *f"--shared-prefix 12 --seed 7 --api-key sesame-sesame --json {files[0]} --html {files[1]}".split(),
    )
    assert status == 0
    shown = capsys.readouterr().out
    assert f"stub at {stub.url}" in shown
    assert re.search(r"^ +1 client +4 +[\d,.]+ ", shown, re.M)
    assert re.search(r"^ +2 clients +4 +[\d,.]+ .* 0$", shown, re.M)
    assert stub.keys == {"Bearer sesame-sesame"}
    prompts = [body["prompt"].split(" ") for body in stub.bodies[1:]]
    assert {len(words) for words in prompts} == {20}
    assert len({tuple(words[:12]) for words in prompts}) == 2, "each load has a prefix of its own"
    assert len({tuple(words) for words in prompts}) == 8
    text = files[0].read_text()
    record = orjson.loads(text)
    assert [result["max_concurrency"] for result in record["results"]] == [1, 2]
    assert {result["completed"] for result in record["results"]} == {4}
    assert {result["total_output_tokens"] for result in record["results"]} == {36}
    assert {result["total_input_tokens"] for result in record["results"]} == {160}
    assert all(result["median_ttft_ms"] > 0 and result["p99_itl_ms"] > 0 for result in record["results"])
    page = files[1].read_text()
    assert "sesame" not in text + page
    assert page.count("<svg") >= 8
    assert not re.search(r"<script|https?://(?!127\.0\.0\.1)|\b(src|href)=|url\(|@import", page)


async def test_two_servers_take_turns_under_the_same_prompts(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = StubServer()
    async with other.server:
        status = await bench(
            *f"--url {stub.url} --compare {other.url} --api-key of-the-first --rounds 2 --num-warmups 0".split(),
            *f"--concurrency 1 --requests 2 --output-tokens 6 --route chat --json {tmp_path / 'f'}".split(),
        )
    assert status == 0
    assert [body["messages"] for body in stub.bodies] == [body["messages"] for body in other.bodies]
    assert len({body["messages"][0]["content"] for body in stub.bodies}) == 4
    assert min(len(stub.clients), len(other.clients)) > 1, "some servers end a connection after a stream"
    assert (stub.keys, other.keys) == ({"Bearer of-the-first"}, {None})
    record = orjson.loads((tmp_path / "f").read_bytes())
    assert [result["server"] for result in record["results"]] == ["A", "B", "B", "A"]
    ratio = next(ratio for ratio in record["ratios"] if ratio["figure"] == "tok/s")
    least, most = ratio["spread"]
    assert least <= ratio["ratio_of_medians"] <= most
    assert re.search(r"1 client +tok/s .*\d \(\d.*\.\.\d", capsys.readouterr().out)


async def test_requests_arrive_at_the_rate_until_the_time_is_over(stub: StubServer, tmp_path: Path) -> None:
    file = tmp_path / "f"
    status = await bench(
        *f"--url {stub.url} --rate 200 --duration 0.2 --output-tokens 6 --seed 1 --num-warmups 0 --json {file}".split()
    )
    assert status == 0
    (result,) = orjson.loads(file.read_bytes())["results"]
    assert result["max_concurrency"] is None
    assert result["completed"] == len(stub.bodies)
    assert 15 <= len(stub.bodies) <= 70  # 40 on average
    assert result["mean_send_delay_ms"] >= 0


async def test_lines_of_a_file_are_requests(stub: StubServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "the tide", "output_tokens": 6, "model": "another"}\n\n{"body": {"prompt": [1, 2], "top_p": 0.5}}\n'
    )
    arguments = f"--url {stub.url} --dataset {file} --concurrency 1 --output-tokens 9 --num-warmups 0"
    assert await bench(*arguments.split(), "--extra-body", '{"top_k": 3}') == 0
    first, second = stub.bodies
    assert (first["prompt"], first["max_tokens"], first["model"], first["top_k"]) == ("the tide", 6, "stub", 3)
    assert (second["prompt"], second["max_tokens"], second["top_p"]) == ([1, 2], 9, 0.5)
    assert "ignore_eos" not in first


async def test_names_in_a_line_of_a_file_are_not_those_of_a_message(stub: StubServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": "row 1", "type": "human", "prompt": "the tide"}\n')
    arguments = f"--url {stub.url} --dataset {file} --concurrency 1 --timeout 60 --num-warmups 0 --route websocket"
    assert await bench(*arguments.split()) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--shared-prefix 200", "--shared-prefix 200 is more than --input-tokens 128"),
        ("--connections 2", "--connections is for --route websocket"),
        ("--compare-model x", "--compare-model and --compare-api-key want --compare"),
        ("--extra-body [1]", "--extra-body is not a JSON object"),
        ("--extra-body {", "--extra-body: "),
        ("--dataset missing.jsonl", "--dataset missing.jsonl cannot be read"),
        ("--html /no/such/folder/report.html", "--html /no/such/folder/report.html cannot be written"),
        ("--url http://127.0.0.1:1", "no server answers at http://127.0.0.1:1"),
        ("--url http://me:se/same@host --model m", "eagre: http://…@host is not the address of a server"),
        ("--compare ftp://me:sesame@host --model m", "eagre: ftp://…@host is not the address of a server"),
        (
            "--url http://me:sesame@host --api-key of-the-first",
            "http://…@host has a name or a password, and there is a",
        ),
        ("--url http://127.0.0.1:1 --model m", "the warm-up at http://127.0.0.1:1 failed: "),
        ("--url http://127.0.0.1:1 --model m --route websocket", "http://127.0.0.1:1 cannot be measured: "),
    ],
)
def test_what_cannot_be_measured(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *arguments.split()]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "same@" not in shown.out + shown.err


async def test_the_password_of_an_address_is_sent_and_written_nowhere(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "figures.json", tmp_path / "report.html"
    url = stub.url.replace("//", "//me:sesame@")
    arguments = f"--url {url} --concurrency 1 --requests 1 --json {files[0]} --html {files[1]}"
    assert await bench(*arguments.split()) == 0
    assert stub.keys == {"Basic bWU6c2VzYW1l"}
    shown = capsys.readouterr().out + files[0].read_text() + files[1].read_text()
    assert shown.count(stub.url.replace("//", "//…@")) == 3
    assert "sesame" not in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "is not a JSON object"),
        ("{", "line 1: "),
        ('{"prompt": 3}', "has neither a prompt nor messages"),
        ('{"messages": []}', "messages must be a list"),
        ('{"messages": [{}]}', "only --route chat and --route websocket take"),
        ("", "has no line with a prompt"),
    ],
)
def test_a_line_that_is_no_request(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text(line)
    assert cli.main(["bench", "--dataset", str(tmp_path / "f")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "9" * 5000])
def test_numbers_have_limits(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", f"--concurrency={value}"])
    assert "eagre: --concurrency/--max-concurrency: " in capsys.readouterr().err


async def test_failed_requests_are_told(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"--url {stub.url} --concurrency 1 --requests 3 --num-warmups 0 --output-tokens {BROKEN}"
    assert await bench(*arguments.split()) == 1
    assert "failed 3 times: error in the stream: {'message': 'the engine failed'}" in capsys.readouterr().out


async def test_ctrl_c_leaves_what_there_is(stub: StubServer, tmp_path: Path) -> None:
    file, page = tmp_path / "f", tmp_path / "p"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "server.cli.main", "bench", "--url", stub.url, "--concurrency", "2", "--requests", "2",
        "--output-tokens", "1000000", "--num-warmups", "0", "--json", str(file), "--html", str(page),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not stub.num_open:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGINT)
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, error) == (130, b"stopped\n")
    assert b"2 answers were cut off when the load was stopped" in out
    (result,) = orjson.loads(file.read_bytes())["results"]
    assert (result["cut"], result["failed"]) == (2, 0)
    assert result["total_output_tokens"] > 0
    assert "stopped before its end" in page.read_text()
