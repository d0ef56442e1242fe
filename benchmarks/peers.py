"""Eagre beside llama.cpp's server: the same prompts over HTTP and SSE, in turn, on the same processors.

    python -m benchmarks.peers --llama-server build/bin/llama-server
    taskset --cpu-list 0,1 python -m benchmarks.peers --llama-model model-q4_0.gguf --rounds 5 --json peers.json

llama-server is built from the sources of llama.cpp, which the source package of llama-cpp-python holds:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python
    tar xzf llama_cpp_python-*.tar.gz && cd llama_cpp_python-*/vendor/llama.cpp
    cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
    cmake --build build --target llama-server llama-quantize

What is measured, in every round, of both servers:

    cN        N clients in a closed loop, prompts of 128 random tokens, 128 tokens out
    prefix    8 clients, prompts of 1,024 tokens of which all share the first 960, 32 tokens out
    prefill   1 client, prompts of 1,024 random tokens (--prefill-tokens), 1 token out
    server    process start to readiness and to the first token, and resident memory: then, and the most in the round

A round starts both servers anew and then takes each measurement of one right after the other's, since a
machine drifts by more in minutes than two servers may differ. The one that is not measured is stopped by a
signal meanwhile: it takes memory and no time. The order changes from round to round. One start of each before
the first round is not counted: it reads the files into the machine's memory, and compiles what is kept.

Both get the same token ids, greedy, with ends of sequence ignored, and a connection for each request
(llama-server closes it after a stream). Tokens are those that the server counts; a chunk is one with text.
Both run on the processors that this process may run on, and so do the clients: they take their share.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serving import peer_loads
from benchmarks.serving.command import run, write_figures
from benchmarks.serving.peer_loads import PeerLoad
from benchmarks.serving.peer_server import MAX_SLOT_TOKENS, Peer, eagre, llama_cpp
from benchmarks.serving.rounds import MAX_TRIES, Rounds, print_table, rows
from server.model_sources.model_store import ensure_model
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.peers"
LOADS = ("decode", "prefix", "prefill")


def chosen_loads(options: argparse.Namespace) -> list[PeerLoad]:
    loads = [peer_loads.decode(num_clients) for num_clients in options.concurrency if "decode" in options.loads]
    loads += [peer_loads.prefix()] if "prefix" in options.loads else []
    loads += [peer_loads.prefill(options.prefill_tokens)] if "prefill" in options.loads else []
    return loads if options.requests is None else [load.of_size(options.requests) for load in loads]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="for Eagre: a name or a path to a GGUF file")
    parser.add_argument("--eagre-args", default="", help="further arguments of `eagre serve`, as one string")
    parser.add_argument("--llama-server", default="llama-server", metavar="PATH", help="the executable")
    parser.add_argument("--llama-model", metavar="PATH", help="a GGUF file for llama.cpp (default: Eagre's)")
    parser.add_argument("--llama-slots", type=int, default=16, metavar="N", help="requests that llama.cpp runs at once")
    parser.add_argument("--llama-args", default="", help="further arguments of llama-server, as one string")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help="clients")
    parser.add_argument("--prefill-tokens", type=int, default=1024, metavar="N", help="of the prompts of that load")
    parser.add_argument("--requests", type=int, metavar="N", help="in each turn (default: 6 to 128, by load)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument(
        "--max-others",
        type=float,
        default=1.0,
        metavar="SHARE",
        help=f"take a turn again, {MAX_TRIES} times at most, if other processes had more of the processor, 0 to 1",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    for name, least in (("llama_slots", 1), ("rounds", 1), ("requests", 1), ("prefill_tokens", 1)):
        if (value := vars(options)[name]) is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    if min(options.concurrency) < 1:
        parser.error(f"--concurrency must be at least 1, not {min(options.concurrency)}")
    if shutil.which(options.llama_server) is None:
        parser.error(f"--llama-server: there is no executable {options.llama_server}")
    if options.llama_model is not None and not Path(options.llama_model).is_file():
        parser.error(f"--llama-model: there is no file {options.llama_model}")
    return options


def chosen_peers(options: argparse.Namespace) -> tuple[Peer, Peer]:
    with ProgressReporter() as progress:
        model = ensure_model(options.model, progress)
    executable = Path(str(shutil.which(options.llama_server))).resolve()
    llama_model = model if options.llama_model is None else Path(options.llama_model)
    return (
        eagre(model.resolve(), shlex.split(options.eagre_args)),
        llama_cpp(
            str(executable),
            llama_model.resolve(),
            options.llama_slots,
            shlex.split(options.llama_args),
            max(MAX_SLOT_TOKENS, options.prefill_tokens + 1),
        ),
    )


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    peers = chosen_peers(options)
    servers = (peers[0].name, peers[1].name)
    turns = Rounds(peers, chosen_loads(options), options.max_others, options.seed).run(options.rounds)
    table = rows(turns, servers)
    print_table(table, servers)
    if options.json:
        commands = {peer.name: shlex.join(peer.command(0)) for peer in peers}
        summary = [row.to_dict(servers) for row in table]
        write_figures(options.json, PROGRAM, arguments, commands=commands, table=summary, turns=turns)
    return 0 if all(turn.is_good for turn in turns) else 1


if __name__ == "__main__":
    run(PROGRAM, main)
