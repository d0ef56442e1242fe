"""The command line: help, usage errors, and `eagre complete` against a server."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.interface.types import Progress
from server.cli import complete
from server.cli import main as cli
from server.cli.client import address
from server.cli.client.errors import NoAnswer, NoServer
from server.cli.complete import write_remote
from server.startup import model_loader
from server.startup.flags import flag_name
from server.startup.model_loader import LoadedModel
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel, render
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

COMMANDS = (
    "serve", "deploy", "run-batch", "pull", "models", "run", "ps", "show", "stop", "config", "rm", "complete", "chat",
    "top", "bench", "completion",
)  # fmt: skip


@pytest.mark.parametrize("arguments", [(), *((name,) for name in COMMANDS)])
def test_help_has_examples(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:\n  eagre" in shown
    assert "(default )" not in shown


def shown_help(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "deploy"])
def test_the_help_shows_a_dozen_flags_in_groups_and_all_of_them_on_demand(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = {flag_name(setting) for setting in ServerSettings.declared()}
    short, full = (shown_help(capsys, command, flag) for flag in ("--help", "--help=all"))
    shown = {flag for flag in declared if re.search(rf"^  {flag}(?![\w-])", short, re.MULTILINE)}
    assert len(shown) == 12
    assert {"--model", "--host", "--port", "--max-num-seqs", "--store"} <= shown
    assert "--help=all" in short
    assert "\nspeed and memory:\n" in short
    assert {flag for flag in declared if re.search(rf"^  {flag}(?![\w-])", full, re.MULTILINE)} == declared


@pytest.mark.parametrize("command", ["complete", "chat"])
def test_the_help_of_sampling_leaves_it_to_the_model(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(shown_help(capsys, command, "--help").split())
    assert "the most probable token (default: the model's own)" in shown
    assert "draw from (default: the model's own)" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--prot", "9000"], "--prot is no flag; did you mean --port? `eagre serve --help`"),
        (["chat", "--temprature", "1"], "--temprature is no flag; did you mean --temperature? `eagre chat --help`"),
        (["serve", "--zzz=1"], "--zzz is no flag; `eagre serve --help`"),
        (["sreve"], "COMMAND is 'sreve'; did you mean serve? `eagre --help`"),
        (["completion", "cmd"], "SHELL is 'cmd'; it must be one of bash, zsh, fish; `eagre completion --help`"),
        (["complete", "x", "--max-tokens", "y"], "--max-tokens is 'y'; it must be an integer; `eagre complete --help`"),
        (["complete", "x", "--top-p", "y"], "--top-p is 'y'; it must be a number; `eagre complete --help`"),
    ],
)
def test_wrong_usage_is_one_line_with_what_was_meant(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"eagre: {message} explains the usage\n"


def test_a_misspelt_variable_is_named_and_the_server_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from server.cli import serve

    monkeypatch.setattr(serve, "run_server", lambda settings, announce: 0)
    for name in [name for name in os.environ if name.startswith("EAGRE_")]:
        monkeypatch.delenv(name)
    known = ("EAGRE_CACHE", "EAGRE_URL", "EAGRE_THREADS", "EAGRE_LOG_LEVEL", "EAGRE_REPLICAS", "EAGRE_SERVICE_HOST")
    values = {"EAGRE_LOG_LEVEL": "info", "EAGRE_REPLICAS": "2"}
    for name in (*known, "EAGRE_MAX_NUM_SEQ", "EAGRE_WHATEVER"):
        monkeypatch.setenv(name, values.get(name, "3"))
    assert cli.main(["serve"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "eagre: there is no variable EAGRE_MAX_NUM_SEQ; it is ignored; did you mean EAGRE_MAX_NUM_SEQS?",
        "eagre: there is no variable EAGRE_WHATEVER; it is ignored",
    ]


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["deploy", "--help"], ["completion", "bash"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys, server.cli.main as cli\n"
        f"try: cli.main({arguments})\n"
        "except SystemExit: pass\n"
        "assert not {'jax', 'numpy', 'aiohttp', 'asyncio', 'pydantic', 'tokenizers', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=PATIENCE_S)


def test_a_server_starts_without_what_no_start_needs(tmp_path: Path) -> None:
    script = (
        "import os, sys, server.cli.main as cli\n"
        "os._exit = sys.exit\n"
        f"try: cli.main(['serve', {str(tmp_path / 'missing.gguf')!r}, '--port', '0'])\n"
        "except SystemExit as ended: assert ended.code == 1\n"
        "import engine.client\n"
        "from server.startup.logs import log\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('failed')\n"
        "found = {name.split('.')[0] for name in sys.modules}\n"
        "assert {'aiohttp', 'jax', 'structlog'} <= found\n"
        "assert 'rich' not in found\n"
        "assert 'engine.models.registry' in sys.modules\n"
        "assert not [name for name in sys.modules if name.startswith('engine.models.architectures.')]\n"
        "import aiohttp.connector\n"
        "assert not aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509']\n"
        "import rich.console"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    assert "ZeroDivisionError" in ended.stderr


@pytest.mark.parametrize("module", ["server", "server.cli.main"])
def test_the_command_runs_as_a_module(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, "pull", "no-such-model"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("eagre: unknown model 'no-such-model'")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("eagre ")


@pytest.mark.parametrize(
    "arguments", [["dance"], ["complete"], ["complete", "x", "--max-tokens", "y"], ["serve", "-x"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


def test_a_wrong_setting_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--port", "70000"]) == 2
    assert capsys.readouterr().err == "eagre: --port is 70000; it must be from 0 to 65535\n"


def test_a_package_that_a_setting_needs_is_missed_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)  # as if it were not installed
    assert cli.main(["serve", "/missing.gguf", "--kv-events", "tcp://127.0.0.1:5557"]) == cli.EXIT_USAGE
    assert (
        "needs the package msgspec, which is not installed; pip install 'eagre[kv-events]'" in capsys.readouterr().err
    )


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("m.gguf",), ("--model", "m.gguf"), ("--port", "1", "m.gguf", "--seed", "2")])
def test_the_model_may_stand_without_its_flag(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from server.cli import serve

    served: list[ServerSettings] = []
    monkeypatch.setattr(serve, "run_server", lambda settings, announce: served.append(settings) or 7)
    assert cli.main(["serve", *arguments]) == 7
    assert served[0].model == "m.gguf"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replicas", "2", "--max-replicas", "3"), "--replicas is 2, a fixed number; it does not go with"),
        (("--store", "x.db"), "--store does not go with `eagre deploy`: the file belongs to one server alone"),
        (("--port", "70000"), "--port is 70000; it must be from 0 to 65535"),
        (("a.gguf", "--model", "b.gguf"), "the model is given twice: a.gguf and --model b.gguf"),
        ((), "`eagre deploy` needs Ray: pip install 'eagre[ray]'"),
    ],
)
def test_a_deployment_that_cannot_be_exits_with_2(
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):  # they are given a default
        monkeypatch.setenv(name, "")
    assert cli.main(["deploy", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"eagre: {message}")


def test_one_model_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "a.gguf", "--model", "b.gguf"]) == 2
    assert "the model is given twice: a.gguf and --model b.gguf" in capsys.readouterr().err


def test_a_file_that_is_here_need_not_be_pulled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(b"GGUF")
    assert cli.main(["pull", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"


def test_an_unknown_model_cannot_be_pulled(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err


async def run_cli(*arguments: str) -> int:
    """Runs the command in a thread, because it starts its own event loop."""
    return await asyncio.to_thread(cli.main, list(arguments))


async def test_complete_streams_from_a_server(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_cli("complete", "tidé 🌊", "--url", server.url, "--seed", "3", "--temperature", "0") == 0
    assert capsys.readouterr().out == "tidé 🌊\n"
    params = server.engine.submitted[0].params
    assert (params.max_tokens, params.seed, params.temperature) == (256, 3, 0.0)


async def test_complete_as_chat_and_from_standard_input(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert await run_cli("complete", "-", "--chat", "--url", server.url + "/v1/") == 0
    assert capsys.readouterr().out == render({"role": "user", "content": "hello"}) + "\n"


async def test_complete_with_a_system_message_and_an_attachment(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "server.log").write_text("it ended", encoding="utf-8")
    with (tmp_path / "server.log").open(encoding="utf-8") as attached:
        monkeypatch.setattr(sys, "stdin", attached)
        assert await run_cli("complete", "Why?", "--system", "Be brief.", "--url", server.url) == 0
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?\n\nit ended"}]
    assert capsys.readouterr().out == render(*messages) + "\n"


@pytest.mark.parametrize("is_file", [False, True])
def test_complete_asks_for_an_answer_of_a_form(is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, Any]] = []
    monkeypatch.setattr(complete, "write_answer", lambda url, model, key, body, write, **_: bodies.append(body))
    schema = '{"type": "object"}'
    (tmp_path / "schema.json").write_text(schema, encoding="utf-8")
    assert cli.main(["complete", "x", "--schema", str(tmp_path / "schema.json") if is_file else schema]) == 0
    assert cli.main(["complete", "x", "--json"]) == 0
    messages = [{"role": "user", "content": "x"}]
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    assert [{"messages": body["messages"], "response_format": body["response_format"]} for body in bodies] == [
        {"messages": messages, "response_format": form},
        {"messages": messages, "response_format": {"type": "json_object"}},
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "--schema is no JSON: "),
        ("missing.json", "--schema is neither an object of JSON nor a file that can be read: "),
        (__file__, f"{__file__} is no JSON: "),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["complete", "x", "--schema", schema]) == 1
    assert capsys.readouterr().err.startswith(f"eagre: {message}")


async def test_the_address_may_come_from_the_environment(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGRE_URL", server.url)
    assert await run_cli("complete", "abc") == 0
    assert capsys.readouterr().out == "abc\n"


KEY = "sk-tide-and-time"


@pytest.mark.parametrize("variable", [None, KEY, f"{KEY} boatman priority=5,another-key"])
async def test_complete_sends_a_key(
    start_server: StartServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    server = await start_server(api_keys=(KEY,))
    flags = []
    if variable is None:
        flags = ["--api-key", KEY]
        monkeypatch.setenv("EAGRE_API_KEY", "a-wrong-key")
    else:
        monkeypatch.setenv("EAGRE_API_KEY", variable)
    assert await run_cli("complete", "abc", "--url", server.url, *flags) == 0
    assert capsys.readouterr().out == "abc\n"


@pytest.mark.parametrize("flags", [[], ["--api-key", "sk-a-wrong-key"], ["--api-key", "tidé-tidé-tidé"]])
async def test_without_the_right_key_the_refusal_says_so_and_shows_no_key(
    start_server: StartServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.delenv("EAGRE_API_KEY", raising=False)
    server = await start_server(api_keys=(KEY,))
    assert await run_cli("complete", "abc", "--url", server.url, *flags) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("eagre: ")
    assert "key" in shown.err
    assert not any(flag in shown.err for flag in flags[1:])


@pytest.mark.parametrize("command", ["complete", "chat"])
async def test_a_model_that_the_server_does_not_have_is_refused(
    server: RunningServer, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ["x"] if command == "complete" else []
    monkeypatch.setattr(sys, "stdin", io.StringIO("x"))
    monkeypatch.delenv("EAGRE_URL", raising=False)
    assert await run_cli(command, *prompt, "--url", server.url, "--model", "nope") == 1
    refused = capsys.readouterr()
    assert refused.out == ""
    assert "nope" in refused.err
    assert refused.err.strip().endswith("has fake") or refused.err.strip().endswith('has "fake"')
    monkeypatch.setattr(address, "DEFAULT_URL", server.url)
    assert await run_cli(command, *prompt, "--model", "nope") == 1
    assert capsys.readouterr().err.endswith("; --local loads it into this process\n")
    assert server.engine.submitted == []


@pytest.mark.parametrize("command", ["complete", "chat"])
async def test_a_wrong_parameter_is_refused_before_a_model_is_loaded(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loader, "load_model", lambda *_: pytest.fail("the model is loaded"))
    prompt = ["x"] if command == "complete" else []
    assert await run_cli(command, *prompt, "--local", "--temperature", "-1") == 1
    assert capsys.readouterr().err == "eagre: temperature is -1.0; it must be from 0 to 2\n"


async def test_a_refusal_is_reported_in_one_line_and_exits_with_1(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run_cli("complete", "x", "--url", server.url, "--temperature", "3") == 1
    assert capsys.readouterr().err == "eagre: temperature is 3.0; it must be from 0 to 2\n"


async def test_a_given_server_that_does_not_answer_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_cli("complete", "x", "--url", "http://127.0.0.1:1") == 1
    assert "no server answers at http://127.0.0.1:1: Connection refused" in capsys.readouterr().err


async def test_without_a_server_the_model_is_loaded_into_this_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngineClient()

    def load(settings: ServerSettings, _progress: Progress) -> LoadedModel:
        assert settings.engine.max_num_seqs == 1
        return LoadedModel(engine.client, FakeTextModel().model)

    monkeypatch.setattr(model_loader, "load_model", load)
    monkeypatch.setattr(address, "DEFAULT_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("EAGRE_URL", raising=False)
    assert await run_cli("complete", "abc") == 0
    shown = capsys.readouterr()
    assert shown.out == "abc\n"
    assert shown.err.startswith("no server at http://127.0.0.1:1; loading the model here\n")
    assert engine.is_shut_down


async def test_cancelling_a_remote_answer_aborts_it(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    pieces: list[str] = []
    answering = asyncio.create_task(write_remote(server.url, {"prompt": "abc"}, pieces.append))
    await eventually(lambda: len(engine.running) == 1)
    engine.step()
    await eventually(lambda: pieces == ["a"])
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    await server.assert_all_streams_ended()
    assert len(engine.aborted) == 1


async def test_an_error_within_the_stream_is_raised(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    answering = asyncio.create_task(write_remote(server.url, {"prompt": "abc"}, lambda _: None))
    await eventually(lambda: len(engine.running) == 1)
    engine.fail("the device is gone")
    with pytest.raises(NoAnswer, match="the device is gone"):
        await answering


async def test_no_server_at_the_address_has_its_own_error() -> None:
    with pytest.raises(NoServer):
        await write_remote("http://127.0.0.1:1", {"prompt": "a"}, lambda _: None)


@pytest.mark.parametrize("given", [[], ["--coordinator-key", "a-key-of-all-hosts"]])
def test_the_host_that_serves_makes_a_key_where_none_is_given_and_shows_it_once(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from server.cli import serve

    served: list[ServerSettings] = []
    monkeypatch.setattr(serve, "run_server", lambda settings, announce: served.append(settings) or 0)
    hosts = ["--num-hosts", "2", "--tensor-parallel", "2", "--coordinator", "node-0:9000"]
    assert cli.main(["serve", *hosts, *given]) == 0
    key, shown = served[0].engine.coordinator_key, capsys.readouterr().err
    assert key is not None
    assert (key in given, shown.count(key)) == ((True, 0) if given else (False, 1))
    assert cli.main(["serve", *hosts, "--host-index", "1"]) == 2
    assert "--coordinator-key is missing" in capsys.readouterr().err
