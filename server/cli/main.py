"""The command `eagre`. A subcommand imports its modules when it runs, so that `--help` takes about 0.05 s."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from server.cli.client.errors import NoAnswer
from server.cli.parser import HELP_ALL, build_parser
from server.startup.plain_text import one_line, without_controls

if TYPE_CHECKING:
    from contextlib import ExitStack

    from server.cli.chat.terminal import Terminal
    from server.cli.chat.tool_calls import ToolCalls
    from server.startup.settings import ServerSettings

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The console entry point; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(arguments)
    options = parser.parse(["--help" if argument == HELP_ALL else argument for argument in arguments])
    if options.command is None:
        parser.print_help()
        return EXIT_USAGE
    if options.command in _WITH_AIOHTTP:
        from server.cli.lean_imports import import_aiohttp

        import_aiohttp()
    try:
        return _COMMANDS[options.command](options)
    except NoAnswer as error:
        return _fail(str(error), EXIT_FAILURE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _serve(options: argparse.Namespace) -> int:
    from server.cli.lean_imports import import_structlog
    from server.cli.memory import postpone_gc

    postpone_gc()
    import_structlog()
    from server.cli.serve import run_server
    from server.startup.settings import ServerSettings

    def read() -> ServerSettings:
        return ServerSettings.from_sources(_flags(options), os.environ)

    try:
        settings = read()
        settings.engine.check_packages()
    except ValueError as error:  # a SettingsError, or of a package
        return _fail(str(error), EXIT_USAGE)
    if settings.replica_name is None:  # a replica has the variables of its front, which has said this
        _warn_of_variables()
    if settings.engine.num_hosts > 1 and not settings.engine.has_host_key:
        settings = _with_host_key(settings)
    if settings.engine.host_index:
        from server.cli.follower import run_follower

        return run_follower(settings, _announce)
    if settings.data_parallel > 1:
        from server.cli.router import run_local_replicas

        return run_local_replicas(settings, _announce)
    if settings.config is None or settings.engine.num_hosts > 1:
        return run_server(settings, _announce)
    return run_server(settings, _announce, read)


def _with_host_key(settings: ServerSettings) -> ServerSettings:
    """The settings of the host that serves, with a key of its own, which is shown here and nowhere else."""
    import secrets
    from dataclasses import replace

    key = secrets.token_urlsafe(24)
    _announce(f"eagre: the other hosts need this key, as EAGRE_COORDINATOR_KEY or in --coordinator-key-file: {key}")
    return replace(settings, engine=replace(settings.engine, coordinator_key=key))


def _deploy(options: argparse.Namespace) -> int:
    from server.router.ray.plan import DeployPlan
    from server.startup.settings import SettingsError

    try:
        flags = _flags(options)
        plan = DeployPlan.from_sources(flags, os.environ)
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    _warn_of_variables()
    from server.cli.deploy import run_deployment

    return run_deployment(plan, flags, os.environ, _announce)


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the flags by setting name, the positional model as `model`; raises SettingsError if it is given twice."""
    from server.startup.settings import SettingsError

    flags = dict(vars(options))
    if options.only_model is not None:
        if options.model is not None:
            others = " ".join(f"--model {model}" for model in options.model)
            raise SettingsError(f"the model is given twice: {options.only_model} and {others}")
        flags["model"] = [options.only_model]
    return flags


def _announce(line: str) -> None:
    """Prints a line of a serving command; settings have the names of their flags there."""
    from server.startup.flags import as_given
    from server.startup.settings import ServerSettings

    prefix, name, rest = line.partition("eagre: ")
    if name and not prefix:
        line = name + as_given(rest, ServerSettings.declared(), {}, {})
    print(without_controls(line), file=sys.stderr, flush=True)


def _warn_of_variables() -> None:
    """Prints a line for each variable EAGRE_… that no command reads: it is misspelt, most likely."""
    from server.cli.usage import unknown_variables
    from server.startup.flags import variable_name
    from server.startup.settings import ServerSettings

    declared = {variable_name(setting) for setting in ServerSettings.declared()}
    if unknown_variables(os.environ, declared):
        from engine.interface.setting import settings_of
        from server.router.ray.plan import DeployPlan

        declared |= {variable_name(setting) for setting in settings_of(DeployPlan).values()}
        for line in unknown_variables(os.environ, declared):
            _announce(f"eagre: {line}")


def _run_batch(options: argparse.Namespace) -> int:
    from pathlib import Path

    from server.startup.settings import ServerSettings

    try:
        flags = _flags(options)
        if flags["target_gap"] is None and "EAGRE_TARGET_GAP" not in os.environ:
            flags["target_gap"] = "0"  # nobody waits for a single answer
        settings = ServerSettings.from_sources(flags, os.environ)
        settings.engine.check_packages()
    except ValueError as error:  # a SettingsError, or of a package
        return _fail(str(error), EXIT_USAGE)
    if len(settings.models) > 1:
        return _fail("--model is given several times; a batch is answered by one model", EXIT_USAGE)
    _warn_of_variables()
    from server.cli.batch.answer_file import AnswerFile
    from server.cli.batch.request_file import RequestFile
    from server.cli.batch.run_batch import run_batch
    from server.http.batches.line_execution import EXECUTED
    from server.startup.logs import set_up_logs
    from server.text.tokenization.tokenizers_encoder import disable_tokenizers_threads

    set_up_logs("warning", settings.log_format)
    disable_tokenizers_threads()
    requests = RequestFile(Path(options.input_file), EXECUTED)
    with AnswerFile(Path(options.output_file), resume=options.resume) as answers:
        _announce(f"eagre: {run_batch(settings, requests, answers)}")
    return EXIT_OK


def _pull(options: argparse.Namespace) -> int:
    from server.model_sources.cache_folder import ModelStoreError
    from server.model_sources.model_store import pull_model
    from server.startup.progress import ProgressReporter

    try:
        with ProgressReporter() as progress:
            path = pull_model(options.name, progress)
    except ModelStoreError as error:
        return _fail(str(error), EXIT_FAILURE)
    print(without_controls(str(path)) if sys.stdout.isatty() else path)
    return EXIT_OK


def _config(options: argparse.Namespace) -> int:
    from server.cli.manage.config import check_config
    from server.startup.settings import SettingsError

    try:
        _write(check_config(options.file))
    except SettingsError as error:
        return _fail(str(error), EXIT_FAILURE)
    return EXIT_OK


def _models(options: argparse.Namespace) -> int:
    from server.cli.manage import models
    from server.model_sources.cache_folder import ModelStoreError
    from server.startup.settings import ServerSettings, SettingsError

    try:
        config = ServerSettings.from_sources({}, os.environ).engine
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    try:
        found = models.measure_models(options.paths, config)
    except ModelStoreError as error:
        return _fail(str(error), EXIT_FAILURE)
    _write(models.as_json(*found) if options.json else models.as_table(*found))
    return EXIT_OK


def _complete(options: argparse.Namespace) -> int:
    from server.cli.complete import body_of, write_answer

    body = body_of(options) | _sampling(options)
    wrap = None
    if sys.stdout.isatty() and "response_format" not in body:
        from shutil import get_terminal_size

        from server.cli.chat.word_wrap import WordWrap

        wrap = WordWrap(get_terminal_size().columns)
    try:
        write = _write if wrap is None else lambda text: _write(wrap.feed(text))
        write_answer(options.url, options.model, _key(options), body, write, is_local=options.local)
    except KeyboardInterrupt:
        print()
        raise
    print("" if wrap is None else without_controls(wrap.finish()), flush=True)
    return EXIT_OK


def _chat(options: argparse.Namespace) -> int:
    from contextlib import ExitStack, closing

    from server.cli.chat.answers import open_answers
    from server.cli.chat.chat import Chat
    from server.cli.chat.conversation import Conversation
    from server.cli.chat.terminal import Terminal

    has_tools = bool(options.mcp or options.mcp_config is not None or options.tools)
    conversation = Conversation(options.model, options.system, **_sampling(options))
    body = conversation.body("?")
    with ExitStack() as stack:
        terminal = stack.enter_context(closing(Terminal(is_plain=options.plain)))
        if has_tools and not terminal.is_interactive:
            raise NoAnswer("tools need a terminal, in which each call is shown before it runs")
        answers = stack.enter_context(closing(open_answers(
            options.url, options.model, _key(options), body, is_local=options.local, has_tools=has_tools
        )))  # fmt: skip
        tools = _open_tools(options, terminal, stack) if has_tools else None
        if terminal.is_interactive:
            terminal.tell(f"{answers.name} answers; /help lists the commands")
        return EXIT_OK if Chat(conversation, answers, terminal, tools).run() else EXIT_FAILURE


def _open_tools(options: argparse.Namespace, terminal: Terminal, stack: ExitStack) -> ToolCalls:
    """The tools of the flags, which `stack` closes; sources that fail are named."""
    import signal
    import threading
    from contextlib import closing

    from server.cli.chat.tool_calls import ToolCalls
    from server.cli.client.address import DEFAULT_URL
    from server.cli.tools.sources import open_sources
    from server.cli.tools.toolbox import Toolbox

    url, names = options.url or DEFAULT_URL, options.mcp or []
    sources = open_sources(names, options.mcp_config, url, _key(options), has_builtin=options.tools)
    box = stack.enter_context(closing(Toolbox(sources)))
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGHUP, signal.SIGTERM):  # the box ends processes
            signal.signal(number, _exit)
    for failure in box.load():
        terminal.tell(f"eagre: {one_line(failure)}")
    found = [tool["function"]["name"] for tool in box.definitions()]
    terminal.tell(f"tools: {', '.join(found) or 'none'}")
    return ToolCalls(box, terminal)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _run(options: argparse.Namespace) -> int:
    from server.cli.manage.run import server_of

    options.url, options.model = server_of(options.model, options.url, _key(options))
    options.local = False
    return _chat(options)


def _ps(options: argparse.Namespace) -> int:
    from server.cli.manage.ps import list_running

    _write(list_running(options.url, _key(options), as_json=options.json))
    return EXIT_OK


def _show(options: argparse.Namespace) -> int:
    from server.cli.manage.ps import describe

    _write(describe(options.model, options.url, _key(options), as_json=options.json))
    return EXIT_OK


def _stop(options: argparse.Namespace) -> int:
    from server.cli.manage.stop import stop_servers

    stop_servers(options.model)
    return EXIT_OK


def _rm(options: argparse.Namespace) -> int:
    from server.cli.manage.stop import remove

    _write(remove(options.model))
    return EXIT_OK


def _top(options: argparse.Namespace) -> int:
    import asyncio
    from contextlib import suppress

    from server.cli.client.address import DEFAULT_URL
    from server.cli.client.server_client import ServerClient
    from server.cli.top.top import follow

    client = ServerClient(options.url or DEFAULT_URL, _key(options))
    with suppress(KeyboardInterrupt):  # the way to end it
        asyncio.run(follow(client, options.model, is_once=options.once))
    return EXIT_OK


def _bench(options: argparse.Namespace) -> int:
    from server.cli.bench.bench import run_bench

    return run_bench(options, _key(options))


def _completion(options: argparse.Namespace) -> int:
    from server.cli.completion import completion_script

    _write(completion_script(options.shell))
    return EXIT_OK


_COMMANDS = {
    "serve": _serve, "deploy": _deploy, "run-batch": _run_batch, "pull": _pull, "models": _models, "run": _run,
    "ps": _ps, "show": _show, "stop": _stop, "rm": _rm, "config": _config, "complete": _complete, "chat": _chat,
    "top": _top, "bench": _bench, "completion": _completion,
}  # fmt: skip

_WITH_AIOHTTP = {"serve", "run", "ps", "show", "complete", "chat", "top", "bench"}


def _key(options: argparse.Namespace) -> str | None:
    from server.cli.client.address import first_key

    return first_key(options.api_key or os.environ.get("EAGRE_API_KEY"))


def _sampling(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: vars(options)[name] for name in ("max_tokens", "temperature", "top_p", "seed")}
    return {name: value for name, value in given.items() if value is not None}


def _write(text: str) -> None:
    print(without_controls(text) if sys.stdout.isatty() else text, end="", flush=True)


def _fail(message: str, status: int) -> int:
    print(f"eagre: {without_controls(message)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
