"""Compares Eagre with llama.cpp's server: the same prompts over HTTP and SSE, alternating, on the same processors.

    python -m benchmarks.peers --llama-server build/bin/llama-server
    taskset --cpu-list 0,1 python -m benchmarks.peers --llama-model model-q4_0.gguf --rounds 5 --json peers.json

llama-server is built from the sources of llama.cpp, which the source package of llama-cpp-python holds:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python
    tar xzf llama_cpp_python-*.tar.gz && cd llama_cpp_python-*/vendor/llama.cpp
    cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
    cmake --build build --target llama-server llama-quantize

Measured in every round, of both servers:

    cN        N clients in a closed loop, prompts of 128 random tokens, 128 tokens out
    prefix    8 clients, prompts of 1,024 tokens of which all share the first 960, 32 tokens out
    prefill   1 client, prompts of 1,024 random tokens (--prefill-tokens), 1 token out
    server    process start to readiness and to the first token, and resident memory: then, and the most in the round

How servers take turns: benchmarks/serving/alternation.py. Both get the same token ids, greedy, with ends of sequence
ignored, and a connection for each request (llama-server closes it after a stream). Tokens are those that the server
counts; a chunk is one with text. Both run on the processors that this process may run on, and so do the clients.
"""

import argparse
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serving.alternation import add_alternation_flags, alternate_servers, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.engines import model_path
from benchmarks.serving.loads import LOADS, chosen_loads
from benchmarks.serving.server_process import ServerProcess
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.peers"
MAX_SLOT_TOKENS = 1536  # of llama.cpp: prompt and output of one request, unless a load asks for more


def num_processors() -> int:
    """How many processors this process, and so whatever it starts, may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def llama_cpp(
    executable: str, model: Path, num_slots: int, slot_tokens: int, arguments: Sequence[str]
) -> ServerProcess:
    """llama.cpp's server; `num_slots` requests are decoded at once, each with its own part of the KV cache."""
    num_threads = str(num_processors())
    options = ["--threads", num_threads, "--threads-batch", num_threads]
    options += ["--parallel", str(num_slots), "--ctx-size", str(num_slots * slot_tokens), "--no-kv-unified"]
    options += ["--cont-batching", "--batch-size", "2048", "--ubatch-size", "512", "--flash-attn", "on"]
    options += ["--offline", "--no-ui", "--log-verbosity", "1", *arguments]

    def command(port: int) -> list[str]:
        return [executable, "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *options]

    return ServerProcess("llama.cpp", command, readiness="/health")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="for Eagre: a name or a path to a GGUF file")
    parser.add_argument("--eagre-args", default="", help="further arguments of `eagre serve`, as one string")
    parser.add_argument("--llama-server", default="llama-server", metavar="PATH", help="the executable")
    parser.add_argument("--llama-model", metavar="PATH", help="a GGUF file for llama.cpp (default: Eagre's)")
    parser.add_argument("--llama-slots", type=at_least_one, default=16, metavar="N", help="requests it runs at once")
    parser.add_argument("--llama-args", default="", help="further arguments of llama-server, as one string")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument(
        "--concurrency", type=at_least_one, nargs="+", default=[1, 4, 16, 64], metavar="N", help="clients"
    )
    parser.add_argument("--prefill-tokens", type=at_least_one, default=1024, metavar="N", help="of prompts of prefill")
    parser.add_argument("--requests", type=at_least_one, metavar="N", help="in each turn (default: 6 to 128, by load)")
    add_alternation_flags(parser)
    options = parser.parse_args(arguments)
    if shutil.which(options.llama_server) is None:
        parser.error(f"--llama-server: there is no executable {options.llama_server}")
    if options.llama_model is not None and not Path(options.llama_model).is_file():
        parser.error(f"--llama-model: there is no file {options.llama_model}")
    return options


def chosen_servers(options: argparse.Namespace) -> tuple[ServerProcess, ServerProcess]:
    model = model_path(options.model)
    executable = Path(str(shutil.which(options.llama_server))).resolve()
    llama_model = Path(options.llama_model or model)
    slot_tokens = max(MAX_SLOT_TOKENS, options.prefill_tokens + 1)
    return (
        ServerProcess.eagre(["--model", str(model.resolve()), *shlex.split(options.eagre_args)]),
        llama_cpp(
            str(executable), llama_model.resolve(), options.llama_slots, slot_tokens, shlex.split(options.llama_args)
        ),
    )


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    servers = chosen_servers(options)
    # llama.cpp's server neither keeps connections alive nor knows return_token_ids, so neither is used.
    loads = chosen_loads(
        options.loads, options.concurrency, options.prefill_tokens, num_requests=options.requests, keep_alive=False,
        return_token_ids=False,
    )  # fmt: skip
    turns = alternate_servers(servers, loads, options)
    commands = {server.name: shlex.join(server.command) for server in servers}
    return finish(turns, [server.name for server in servers], options, PROGRAM, arguments, commands=commands)


if __name__ == "__main__":
    run(PROGRAM, main)
