"""The argument parser of the command `eagre`. Only `serve`, `deploy` and `run-batch` import the settings."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from server.cli.bench.flags import EXAMPLES as BENCH_EXAMPLES
from server.cli.bench.flags import add_flags as add_bench_flags
from server.cli.usage import Parser

DEFAULT_MAX_TOKENS = 256
HELP_ALL = "--help=all"

_EXAMPLES = """examples:
  eagre run qwen2.5-coder-1.5b           talk with a model worth talking to, fetched if need be
  eagre serve                            serve a small built-in model, with a playground
  eagre serve ./my-model.gguf            serve another one
  eagre config check eagre.toml          check a file of settings for `eagre serve --config`
  eagre deploy --replicas 2              serve from several machines, with Ray
  eagre models                           list the models that are here
  eagre chat                             talk with it in the terminal
  eagre top                              watch what the server does
  eagre bench --html report.html         measure it under load
  eagre complete "Once upon a time"      stream a story to the terminal
  eagre pull smollm2-135m-instruct       fetch a model ahead of time
"""

_SERVE_EXAMPLES = """examples:
  eagre serve
  eagre serve ./my-model.gguf --port 9000 --dtype bfloat16
  eagre serve bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0
  EAGRE_PORT=9000 eagre serve --log-format json

These flags matter first; --help=all shows all of them, about 80. Every flag has an environment
variable: EAGRE_MAX_NUM_SEQS for --max-num-seqs. A flag overrides its variable. After SIGTERM or
Ctrl-C running streams may end; a second signal stops at once.
"""

_DEPLOY_EXAMPLES = """examples:
  eagre deploy --replicas 2
  eagre deploy --min-replicas 1 --max-replicas 8 --target-queued-tokens 4096
  eagre deploy --ray-address auto --replicas 16 --replica-cpus 8 --host 0.0.0.0 ./my-model.gguf
  eagre deploy --update --dtype bfloat16

Needs Ray: pip install 'eagre[ray]', on every machine of the cluster. All flags of `eagre serve` apply
to the router or to each replica; --help=all shows them. SIGTERM or Ctrl-C ends the router, then its replicas.
"""

_BATCH_EXAMPLES = """examples:
  eagre run-batch -i requests.jsonl -o answers.jsonl --model smollm2-135m-instruct
  eagre run-batch -i requests.jsonl -o answers.jsonl --model ./my-model.gguf --resume

A line of the input is a request in OpenAI's form for batches:
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
Answers come in the order in which they are ready. --help=all shows the flags of the model and the engine.
"""

_PULL_EXAMPLES = """examples:
  eagre pull gemma-3-270m
  eagre pull HuggingFaceTB/SmolLM2-360M-Instruct
  eagre pull bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0@main

HF_TOKEN gives access to private and gated models of the Hub. Nothing is fetched twice.
"""

_MODELS_EXAMPLES = """examples:
  eagre models
  eagre models ~/models ./my-model.gguf
  EAGRE_DTYPE=float32 eagre models --json

Lists the built-in models, the fetched models of the Hub, and the models at each PATH.
"""

_RUN_EXAMPLES = """examples:
  eagre run qwen2.5-coder-1.5b
  eagre run ./my-model.gguf --system "Answer in one sentence."
  echo "Why is the sky blue?" | eagre run qwen2.5-coder-0.5b

A server that has the model answers, if there is one at http://127.0.0.1:8000 (or EAGRE_URL).
Otherwise one is started in the background, which goes on after the chat and gives its memory
back while it is idle. `eagre ps` lists such servers, `eagre stop` ends them.
"""

_PS_EXAMPLES = """examples:
  eagre ps
  eagre ps --url http://192.168.1.5:8000 --json

Shows the models of the server at --url (or EAGRE_URL); without one, those of the server at
http://127.0.0.1:8000 and of the servers that `eagre run` has started.
"""

_SHOW_EXAMPLES = """examples:
  eagre show qwen2.5-coder-1.5b
  eagre show ./my-model.gguf --json

Shows what a running server says of the model, and what its files say where they are here.
"""

_STOP_EXAMPLES = """examples:
  eagre stop
  eagre stop qwen2.5-coder-1.5b

Ends the servers that `eagre run` has started; their streams may end first.
"""

_RM_EXAMPLES = """examples:
  eagre rm qwen2.5-coder-0.5b
  eagre rm bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0

Deletes a model that was fetched. Files of your own are never deleted.
"""

_CONFIG_EXAMPLES = """examples:
  eagre config check eagre.toml

Says whether `eagre serve --config FILE` can use the file, and what it serves; else the table and the key that
are wrong.
"""

_COMPLETE_EXAMPLES = """examples:
  eagre complete "Once upon a time"
  eagre complete --chat "Why is the sky blue?" --max-tokens 100 --temperature 0
  echo "def fibonacci(n):" | eagre complete - --url http://192.168.1.5:8000
  eagre complete "What does this log say?" --system "Be brief." < server.log
  eagre complete "Name a city." --schema '{"properties": {"city": {"type": "string"}}}'
  eagre complete --local "Once upon a time"

What a pipe or a file gives on standard input is put behind the prompt. Without --url (or
EAGRE_URL) and without a server at http://127.0.0.1:8000, the model is loaded into this process.
"""

_CHAT_EXAMPLES = """examples:
  eagre chat
  eagre chat --url http://192.168.1.5:8000 --system "Answer in one sentence."
  eagre chat --local --model ./my-model.gguf
  eagre chat --mcp-config mcp.json --tools
  echo "Why is the sky blue?" | eagre chat

/help lists the commands of the chat, such as /image PATH; Ctrl-C stops an answer. Without a
terminal each line is a question, and only the answers are written to standard output.
Without --url (or EAGRE_URL) and without a server at http://127.0.0.1:8000, the model is
loaded into this process.
"""

_TOP_EXAMPLES = """examples:
  eagre top
  eagre top --url http://192.168.1.5:8000 --model gemma-3-270m
  eagre top --once > view.txt

The view is drawn five times a second; Ctrl-C ends it. It shows the ids of the key's own requests,
and with the administrator's key those of all requests. A server with --metrics-port shows it to
the administrator only.
"""

_COMPLETION_EXAMPLES = """examples:
  eagre completion bash > ~/.local/share/bash-completion/completions/eagre
  eagre completion zsh > ~/.zfunc/_eagre       # with fpath+=~/.zfunc before compinit
  eagre completion fish > ~/.config/fish/completions/eagre.fish
"""


class _ShowVersion(argparse.Action):
    """Shows the version. argparse's own action needs the text in advance, which takes longer than all of the help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from server.startup.version import eagre_version

        print(f"eagre {eagre_version()}")
        parser.exit()


def build_parser(arguments: Sequence[str]) -> Parser:
    """The parser of the whole command; it has the flags of settings only if a command with them is among `arguments`.

    Their help shows the flags that matter first, or with `--help=all` among the arguments all.
    """
    shows_all = HELP_ALL in arguments
    parser = Parser(
        prog="eagre",
        description="A token-streaming server for language models.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = _add_command(commands, "serve", "serve a model over HTTP and WebSocket", _SERVE_EXAMPLES)
    if "serve" in arguments:  # only this command and the next two take their flags from the settings
        from server.startup.settings import ServerSettings

        serve.add_argument("only_model", metavar="MODEL", nargs="?", help="the same as --model MODEL")
        ServerSettings.add_flags(serve, shows_all=shows_all)

    deploy = _add_command(commands, "deploy", "serve replicas on a Ray cluster behind one router", _DEPLOY_EXAMPLES)
    if "deploy" in arguments:
        from server.router.ray.plan import DeployPlan
        from server.startup.settings import ServerSettings

        deploy.add_argument("only_model", metavar="MODEL", nargs="?", help="the same as --model MODEL")
        DeployPlan.add_flags(deploy)
        ServerSettings.add_flags(deploy, shows_all=shows_all)

    batch = _add_command(commands, "run-batch", "answer a file of requests without a server", _BATCH_EXAMPLES)
    batch.add_argument("-i", "--input-file", metavar="PATH", required=True, help="requests, a line of JSON each")
    batch.add_argument("-o", "--output-file", metavar="PATH", required=True, help="gets the answers, a line each")
    batch.add_argument("--resume", action="store_true", help="go on with the answers that the output file has")
    if "run-batch" in arguments:
        from server.startup.settings import ServerSettings

        batch.add_argument("only_model", metavar="MODEL", nargs="?", help="the same as --model MODEL")
        ServerSettings.add_flags(batch, shows_all=shows_all)

    pull = _add_command(commands, "pull", "fetch a model into the user's cache", _PULL_EXAMPLES)
    pull.add_argument(
        "name", metavar="NAME", help="a built-in model, or owner/name[:file-or-quant][@revision] of the Hub"
    )

    models = _add_command(
        commands, "models", "list the models on this machine and the memory they need", _MODELS_EXAMPLES
    )
    models.add_argument("paths", metavar="PATH", nargs="*", help="model files, model folders or folders of them")
    models.add_argument("--json", action="store_true", help="one JSON object, in bytes")

    run = _add_command(commands, "run", "talk with a model, which is fetched and served if need be", _RUN_EXAMPLES)
    run.add_argument("model", metavar="MODEL", help="as for `eagre serve`")
    _add_url(run)
    _add_conversation(run)

    ps = _add_command(commands, "ps", "list the models of running servers", _PS_EXAMPLES)
    _add_url(ps)
    ps.add_argument("--json", action="store_true", help="one JSON object")

    show = _add_command(commands, "show", "show what is known of a model", _SHOW_EXAMPLES)
    show.add_argument("model", metavar="MODEL", help="as for `eagre serve`, or a name that the server has")
    _add_url(show)
    show.add_argument("--json", action="store_true", help="one JSON object, in bytes")

    stop = _add_command(commands, "stop", "end servers that `eagre run` has started", _STOP_EXAMPLES)
    stop.add_argument("model", metavar="MODEL", nargs="?", help="only that of this model")

    config = _add_command(commands, "config", "check a file of settings for `eagre serve --config`", _CONFIG_EXAMPLES)
    config.add_argument("action", metavar="ACTION", choices=("check",), help="check")
    config.add_argument("file", metavar="FILE", help="a TOML file")

    rm = _add_command(commands, "rm", "delete a fetched model from the cache", _RM_EXAMPLES)
    rm.add_argument("model", metavar="MODEL", help="a built-in model, or one of the Hub")

    complete = _add_command(commands, "complete", "stream one answer to the terminal", _COMPLETE_EXAMPLES)
    complete.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads standard input")
    _add_source(complete)
    complete.add_argument(
        "--model", help="a model of the server, or the one to load into this process, as for `eagre serve`"
    )
    complete.add_argument("--chat", action="store_true", help="send the prompt as a chat message")
    complete.add_argument("--system", metavar="TEXT", help="the system message; implies --chat")
    form = complete.add_mutually_exclusive_group()
    form.add_argument("--schema", metavar="JSON", help="JSON schema of the answer, or a file with one; implies --chat")
    form.add_argument("--json", action="store_true", help="an answer that is a JSON object; implies --chat")
    complete.add_argument("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, metavar="N", help="(default 256)")
    _add_sampling(complete)

    chat = _add_command(commands, "chat", "talk with a model in the terminal", _CHAT_EXAMPLES)
    _add_source(chat)
    chat.add_argument(
        "--model", help="a model of the server, or the one to load into this process, as for `eagre serve`"
    )
    _add_conversation(chat)

    top = _add_command(commands, "top", "show a live view of a server's engine", _TOP_EXAMPLES)
    _add_url(top)
    top.add_argument("--model", help="one of the server's models (default: the first)")
    top.add_argument("--once", action="store_true", help="print one view, as without a terminal")

    bench = _add_command(commands, "bench", "measure a server under load", BENCH_EXAMPLES)
    add_bench_flags(bench)
    _add_key(bench)

    completion = _add_command(commands, "completion", "write a completion script for the shell", _COMPLETION_EXAMPLES)
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
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


def _add_source(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group()
    source.add_argument("--url", default=os.environ.get("EAGRE_URL"), help="address of a running server (EAGRE_URL)")
    source.add_argument("--local", action="store_true", help="load the model into this process")
    _add_key(command)


def _add_url(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", default=os.environ.get("EAGRE_URL"), help="address of the server (EAGRE_URL)")
    _add_key(command)


def _add_conversation(command: argparse.ArgumentParser) -> None:
    command.add_argument("--system", metavar="TEXT", help="the system message")
    command.add_argument("--max-tokens", type=int, metavar="N", help="of each answer (default: as many as fit)")
    _add_sampling(command)
    command.add_argument("--plain", action="store_true", help="write answers as they come, without rendering markdown")
    command.add_argument(
        "--mcp", metavar="NAME_OR_URL", action="append",
        help="an MCP server whose tools the model may call: its address, or its name in --mcp-config or at the server; "
        "may be repeated",
    )  # fmt: skip
    command.add_argument("--mcp-config", metavar="FILE", help='a file of MCP servers, {"mcpServers": {NAME: …}}')
    command.add_argument("--tools", action="store_true", help="let the model call a calculator and ask for the time")


def _add_key(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--api-key",
        metavar="KEY",
        help="key for the server; in EAGRE_API_KEY other users of this machine cannot see it",
    )


def _add_sampling(command: argparse.ArgumentParser) -> None:
    own = "(default: the model's own)"
    command.add_argument("--temperature", type=float, help=f"0 always takes the most probable token {own}")
    command.add_argument("--top-p", type=float, help=f"share of the distribution to draw from {own}")
    command.add_argument("--seed", type=int, help="the same seed gives the same answer (default: another each time)")
