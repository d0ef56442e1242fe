"""The command `eagre`. A subcommand imports its modules only when it runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

from server.startup.version import eagre_version

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

DEFAULT_MAX_TOKENS = 256

_EXAMPLES = """examples:
  eagre serve                            serve a small built-in model, with a playground
  eagre serve ./my-model.gguf            serve another one
  eagre models                           list the models that are here
  eagre complete "Once upon a time"      stream a story to the terminal
  eagre pull smollm2-135m-instruct       fetch a model ahead of time
"""

_SERVE_EXAMPLES = """examples:
  eagre serve
  eagre serve ./my-model.gguf --port 9000 --dtype bfloat16
  eagre serve bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0
  EAGRE_PORT=9000 eagre serve --log-format json

Every flag can be given as an environment variable: --max-num-seqs as EAGRE_MAX_NUM_SEQS.
A flag wins over its variable. SIGTERM or Ctrl-C lets running streams end; a second one does not.
"""

_PULL_EXAMPLES = """examples:
  eagre pull gemma-3-270m
  eagre pull HuggingFaceTB/SmolLM2-360M-Instruct
  eagre pull bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0@main

HF_TOKEN opens private and gated models of the Hub. What is here already is not fetched again.
"""

_MODELS_EXAMPLES = """examples:
  eagre models
  eagre models ~/models ./my-model.gguf
  EAGRE_DTYPE=float32 eagre models --json

Listed are the built-in models, those of the Hub that were fetched, and what lies at each PATH.
"""

_COMPLETE_EXAMPLES = """examples:
  eagre complete "Once upon a time"
  eagre complete --chat "Why is the sky blue?" --max-tokens 100 --temperature 0
  echo "def fibonacci(n):" | eagre complete - --url http://192.168.1.5:8000
  eagre complete --local "Once upon a time"

Without --url (or EAGRE_URL) and without a server at http://127.0.0.1:8000, the model is
loaded into this process.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console entry point; returns the exit status."""
    parser = _build_parser(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    try:
        match options.command:
            case "serve":
                return _serve(options)
            case "pull":
                return _pull(options.name)
            case "models":
                return _models(options.paths, as_json=options.json)
            case "complete":
                return _complete(options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    parser.print_help()
    return EXIT_USAGE


def _build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eagre",
        description="A token-streaming server for language models.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"eagre {eagre_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = _add_command(commands, "serve", "serve a model over HTTP and WebSocket", _SERVE_EXAMPLES)
    if "serve" in arguments:  # only this command takes its flags from the settings
        from server.startup.settings import ServerSettings

        serve.add_argument("only_model", metavar="MODEL", nargs="?", help="the same as --model MODEL")
        ServerSettings.add_flags(serve)

    pull = _add_command(commands, "pull", "fetch a model into the user's cache", _PULL_EXAMPLES)
    pull.add_argument(
        "name", metavar="NAME", help="a built-in model, or owner/name[:file-or-quant][@revision] of the Hub"
    )

    models = _add_command(commands, "models", "list the models of this machine and their memory", _MODELS_EXAMPLES)
    models.add_argument("paths", metavar="PATH", nargs="*", help="model files, model folders or folders of them")
    models.add_argument("--json", action="store_true", help="one JSON object, in bytes")

    complete = _add_command(commands, "complete", "stream one answer to the terminal", _COMPLETE_EXAMPLES)
    complete.add_argument("prompt", metavar="PROMPT", help="the text to go on from; - reads standard input")
    source = complete.add_mutually_exclusive_group()
    source.add_argument("--url", default=os.environ.get("EAGRE_URL"), help="address of a running server (EAGRE_URL)")
    source.add_argument("--local", action="store_true", help="load the model into this process")
    complete.add_argument(
        "--api-key",
        metavar="KEY",
        help="key for the server; as EAGRE_API_KEY it is hidden from the other users of this machine",
    )
    complete.add_argument("--model", help="what `eagre serve` would serve, for the in-process way")
    complete.add_argument("--chat", action="store_true", help="send the prompt as a chat message")
    complete.add_argument("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, metavar="N", help="(default 256)")
    complete.add_argument("--temperature", type=float, help="0 takes the most probable token each time (default 1)")
    complete.add_argument("--top-p", type=float, help="share of the distribution to draw from (default 1)")
    complete.add_argument("--seed", type=int, help="the same seed gives the same answer")
    return parser


def _add_command(commands: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    added = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    assert isinstance(added, argparse.ArgumentParser)
    return added


def _serve(options: argparse.Namespace) -> int:
    from server.command.serve import run_server
    from server.startup.settings import ServerSettings, SettingsError

    flags = vars(options)
    if options.only_model is not None:
        if options.model is not None:
            others = " ".join(f"--model {model}" for model in options.model)
            return _fail(f"the model is given twice: {options.only_model} and {others}", EXIT_USAGE)
        flags["model"] = [options.only_model]
    try:
        settings = ServerSettings.from_sources(flags, os.environ)
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    return run_server(settings, lambda line: print(line, file=sys.stderr, flush=True))


def _pull(name: str) -> int:
    from server.sources.errors import ModelStoreError
    from server.sources.model_store import pull_model
    from server.startup.progress import ProgressReporter

    try:
        with ProgressReporter() as progress:
            path = pull_model(name, progress)
    except ModelStoreError as error:
        return _fail(str(error), EXIT_FAILURE)
    print(path)
    return EXIT_OK


def _models(paths: Sequence[str], *, as_json: bool) -> int:
    from server.command import models
    from server.sources.errors import ModelStoreError
    from server.startup.settings import ServerSettings, SettingsError

    try:
        config = ServerSettings.from_sources({}, os.environ).engine
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    try:
        found = models.measure_models(paths, config)
    except ModelStoreError as error:
        return _fail(str(error), EXIT_FAILURE)
    _write(models.as_json(*found) if as_json else models.as_table(*found))
    return EXIT_OK


def _complete(options: argparse.Namespace) -> int:
    from server.command.complete import DEFAULT_URL, CompleteError, NoServer, first_key, write_local, write_remote

    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if options.chat else {"prompt": prompt}
    for name in ("max_tokens", "temperature", "top_p", "seed"):
        if vars(options)[name] is not None:
            body[name] = vars(options)[name]
    try:
        if not options.local:
            try:
                key = first_key(options.api_key or os.environ.get("EAGRE_API_KEY"))
                asyncio.run(write_remote(options.url or DEFAULT_URL, body, _write, key))
                return _end_line()
            except NoServer:
                if options.url is not None:
                    raise
                print(f"no server at {DEFAULT_URL}; loading the model here", file=sys.stderr)
        write_local(options.model, body, _write)
        return _end_line()
    except CompleteError as error:
        return _fail(str(error), EXIT_FAILURE)
    except KeyboardInterrupt:
        _end_line()
        return EXIT_INTERRUPTED


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _end_line() -> int:
    print(flush=True)
    return EXIT_OK


def _fail(message: str, status: int) -> int:
    print(f"eagre: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
