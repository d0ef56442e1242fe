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
  eagre serve                            serve the built-in model, with a playground
  eagre complete "Once upon a time"      stream a story to the terminal
  eagre pull smollm2-135m-instruct       fetch a model ahead of time
"""

_SERVE_EXAMPLES = """examples:
  eagre serve
  eagre serve --port 9000 --model ./my-model.gguf --dtype bfloat16
  EAGRE_PORT=9000 eagre serve --log-format json

Every flag can be given as an environment variable: --max-num-seqs as EAGRE_MAX_NUM_SEQS.
A flag wins over its variable. SIGTERM or Ctrl-C lets running streams end; a second one does not.
"""

_PULL_EXAMPLES = """examples:
  eagre pull smollm2-135m-instruct
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

        ServerSettings.add_flags(serve)

    pull = _add_command(commands, "pull", "fetch a built-in model into the user's cache", _PULL_EXAMPLES)
    pull.add_argument("name", metavar="NAME", help="name of a built-in model")

    complete = _add_command(commands, "complete", "stream one answer to the terminal", _COMPLETE_EXAMPLES)
    complete.add_argument("prompt", metavar="PROMPT", help="the text to go on from; - reads standard input")
    source = complete.add_mutually_exclusive_group()
    source.add_argument("--url", default=os.environ.get("EAGRE_URL"), help="address of a running server (EAGRE_URL)")
    source.add_argument("--local", action="store_true", help="load the model into this process")
    complete.add_argument("--model", help="name of a built-in model or path of a GGUF file, for the in-process way")
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

    try:
        settings = ServerSettings.from_sources(vars(options), os.environ)
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


def _complete(options: argparse.Namespace) -> int:
    from server.command.complete import DEFAULT_URL, CompleteError, NoServer, write_local, write_remote

    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if options.chat else {"prompt": prompt}
    for name in ("max_tokens", "temperature", "top_p", "seed"):
        if vars(options)[name] is not None:
            body[name] = vars(options)[name]
    try:
        if not options.local:
            try:
                asyncio.run(write_remote(options.url or DEFAULT_URL, body, _write))
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
