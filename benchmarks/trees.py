"""Two checkouts of Eagre beside each other in one run: is what has changed between them as fast as before?

    python -m benchmarks.trees --before ../eagre-before --after .
    python -m benchmarks.trees --before ../eagre-before --after . --clients 1 16 64 --rounds 5 --json trees.json
    python -m benchmarks.trees --before ../eagre-before --after . --step

A round starts a server of each checkout and takes each measurement of one right after the other's, in an order that
changes from round to round, because a machine drifts by more in minutes than two checkouts may differ. The server
that is not measured is stopped by a signal meanwhile. One start of each before the first round is not counted: it
compiles what is kept. Measured over SSE, with the clients in a process of their own:

    cN        N clients in a closed loop, prompts of 128 random tokens, 128 tokens out: output tokens per second, time
              to the first token, gaps between the chunks of a stream, processor seconds of the server
    prefix, prefill
              with --loads: as `benchmarks.peers` has them
    server    process start to readiness and to the first token, and resident memory

With --step, no server runs: `benchmarks.kernels` of each checkout times whole compiled steps, in turn, of as many rows
as --clients says and of --tiles times 64 tokens of a prompt, so that nothing of the loop, of HTTP or of the clients is
in the figures. Ratios are those of the medians, before to after.

A checkout's own interpreter, .venv/bin/python, is taken if there is one, and otherwise the one that runs this.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from benchmarks.serving import peer_loads
from benchmarks.serving.command import run, write_figures
from benchmarks.serving.peer_loads import PeerLoad
from benchmarks.serving.peer_server import Peer
from benchmarks.serving.processor import Disturbance
from benchmarks.serving.rounds import MAX_TRIES, Rounds, Turn, print_table, rows, tell
from benchmarks.serving.server_process import ServerFailed

PROGRAM = "benchmarks.trees"
NAMES = ("before", "after")
FIGURES = ("tok/s", "TTFT p50", "gap p99", "processor s")
LOADS = ("decode", "prefix", "prefill")


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A checkout, and the interpreter that runs it."""

    name: str
    folder: Path
    python: Path

    def command(self, module: str, arguments: Sequence[str]) -> list[str]:
        """To be run in `folder`, where `-m` finds the checkout's modules before any that are installed."""
        return [str(self.python), "-m", module, *arguments]

    def peer(self, arguments: Sequence[str]) -> Peer:
        """Its server."""

        def command(port: int) -> list[str]:
            serve = ["serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
            return self.command("server", [*serve, *arguments])

        return Peer(self.name, command, "/readiness", self.folder)


def chosen_loads(options: argparse.Namespace) -> list[PeerLoad]:
    loads = []
    if "decode" in options.loads:
        decodes = [peer_loads.decode(num_clients) for num_clients in options.clients]
        loads += [PeerLoad(decode.name, FIGURES, decode.workload) for decode in decodes]
    loads += [peer_loads.prefix()] if "prefix" in options.loads else []
    loads += [peer_loads.prefill()] if "prefill" in options.loads else []
    # Both servers keep connections and know token ids, which the loads for other kinds of servers do without.
    loads = [
        dataclasses.replace(load, workload=dataclasses.replace(load.workload, keep_alive=True, return_token_ids=True))
        for load in loads
    ]
    return loads if options.requests is None else [load.of_size(options.requests) for load in loads]


def step_turns(trees: Sequence[Tree], num_rounds: int, arguments: Sequence[str]) -> list[Turn]:
    """The whole steps of each tree, in turn.

    Args:
        arguments: of `benchmarks.kernels`.

    Raises:
        ServerFailed: a tree's benchmark failed.
    """
    turns = []
    for index in range(num_rounds):
        for tree in trees[::-1] if index % 2 else trees:
            disturbance = Disturbance()
            steps = whole_steps(tree, arguments)
            others = disturbance.share()
            for case, seconds in steps.items():
                turns.append(Turn(index, case, tree.name, {"whole step, ms": 1000 * seconds}, others, None))
                tell(turns[-1])
    return turns


def whole_steps(tree: Tree, arguments: Sequence[str]) -> dict[str, float]:
    """Seconds of the median whole step by case, from `benchmarks.kernels` of one tree in a process of its own.

    Raises:
        ServerFailed: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = tree.command("benchmarks.kernels", ["--json", str(file), *arguments])
        done = subprocess.run(
            command, cwd=tree.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            raise ServerFailed(f"{shlex.join(command)} exited with {done.returncode}")
        cases = orjson.loads(file.read_bytes())["cases"]
    return {
        case: timing["seconds"]
        for case, timings in cases.items()
        for timing in timings
        if timing["name"] == "whole step"
    }


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in NAMES:
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="PATH", help="a checkout")
        parser.add_argument(f"--{name}-python", type=Path, metavar="PATH", help="the interpreter that runs it")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64], metavar="N", help="with --step, rows")
    parser.add_argument("--tiles", type=int, nargs="*", default=[], metavar="N", help="with --step, tiles of a prompt")
    parser.add_argument("--loads", choices=LOADS, nargs="+", default=["decode"], help="without --step")
    parser.add_argument("--requests", type=int, metavar="N", help="in each turn (default: 6 to 128, by clients)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--step", action="store_true", help="time whole steps instead of servers")
    parser.add_argument("--server-args", default="", help="further arguments of both servers, as one string")
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
    for name, value in (("rounds", options.rounds), ("clients", min(options.clients)), ("requests", options.requests)):
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, not {value}")
    for name in NAMES:
        folder = getattr(options, name)
        if not (folder / "server" / "__main__.py").is_file():
            parser.error(f"--{name}: there is no checkout of Eagre in {folder}")
    return options


def chosen_trees(options: argparse.Namespace) -> tuple[Tree, Tree]:
    def tree(name: str) -> Tree:
        folder = getattr(options, name).resolve()
        own = folder / ".venv" / "bin" / "python"
        given = getattr(options, f"{name}_python")
        return Tree(name, folder, given.absolute() if given else own if own.is_file() else Path(sys.executable))

    before, after = map(tree, NAMES)
    return before, after


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    trees = chosen_trees(options)
    if options.step:
        cases = ["--tiles", *map(str, options.tiles), "--rows", *map(str, options.clients)]
        turns = step_turns(trees, options.rounds, cases)
    else:
        peers = [tree.peer(shlex.split(options.server_args)) for tree in trees]
        turns = Rounds(peers, chosen_loads(options), options.max_others, options.seed).run(options.rounds)
    servers = (trees[0].name, trees[1].name)
    table = rows(turns, servers)
    print_table(table, servers)
    if options.json:
        summary = [row.to_dict(servers) for row in table]
        shown = [{"name": tree.name, "folder": str(tree.folder), "python": str(tree.python)} for tree in trees]
        write_figures(options.json, PROGRAM, arguments, trees=shown, table=summary, turns=turns)
    return 0 if all(turn.is_good for turn in turns) else 1


if __name__ == "__main__":
    run(PROGRAM, main)
