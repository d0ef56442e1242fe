"""Compares two checkouts of Eagre, alternating: is what has changed between them as fast as before?

    python -m benchmarks.trees --before ../eagre-before --after .
    python -m benchmarks.trees --before ../eagre-before --after . --clients 1 16 64 --rounds 5 --json trees.json
    python -m benchmarks.trees --before ../eagre-before --after . --step

Measured over SSE, with clients that keep their connections (how servers take turns: benchmarks/serving/alternation.py):

    cN        N clients in a closed loop, prompts of 128 random tokens, 128 tokens out
    prefix    with --loads: 8 clients, prompts of 1,024 tokens of which all share the first 960, 32 tokens out
    prefill   with --loads: 1 client, prompts of 1,024 random tokens, 1 token out
    server    process start to readiness and to the first token, and resident memory

With --step, no server runs: `benchmarks.kernels` of each checkout times whole compiled steps, in turn, of as many rows
as --clients says and of --tiles times 64 tokens of a prompt, so that nothing of the loop, of HTTP or of the clients is
in the figures. Ratios are those of the medians, before to after.

A checkout is run by its own interpreter, .venv/bin/python, if there is one, and otherwise by the one that runs this.
Only `python -m server serve` and `python -m benchmarks.kernels` are run in it, so that its modules may have other
names than those of the tree that runs this.
"""

import argparse
import dataclasses
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from benchmarks.serving.alternation import add_alternation_flags, alternate_servers, finish, print_progress
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.loads import LOADS, chosen_loads
from benchmarks.serving.resources import OtherLoad
from benchmarks.serving.server_process import ServerFailed, ServerProcess, eagre_command
from benchmarks.serving.table import Turn

PROGRAM = "benchmarks.trees"
NAMES = ("before", "after")


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    name: str
    folder: Path
    python: Path

    def server(self, arguments: Sequence[str]) -> ServerProcess:
        # Run in `folder`, `-m` finds the checkout's modules before any that are installed.
        program = [str(self.python), "-m", "server"]
        return ServerProcess(self.name, lambda port: eagre_command(port, arguments, program), folder=self.folder)

    def whole_steps(self, arguments: Sequence[str]) -> dict[str, float]:
        """Milliseconds of the median whole step by case, of `benchmarks.kernels` in a process; raises ServerFailed."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "figures.json")
            command = [str(self.python), "-m", "benchmarks.kernels", "--json", str(file), *arguments]
            done = subprocess.run(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
            )
            if done.returncode != 0:
                raise ServerFailed(f"{shlex.join(command)} exited with {done.returncode}")
            cases = orjson.loads(file.read_bytes())["cases"]
        return {
            case: 1000 * timing["seconds"]
            for case, timings in cases.items()
            for timing in timings
            if timing["name"] == "whole step"
        }


def alternate_steps(trees: Sequence[Tree], num_rounds: int, arguments: Sequence[str]) -> list[Turn]:
    """The whole steps of each tree, in turn, one turn for each case of a run of `benchmarks.kernels`."""
    turns = []
    for number in range(num_rounds):
        for tree in trees[::-1] if number % 2 else trees:
            noise = OtherLoad()
            steps = tree.whole_steps(arguments)
            others = noise.share()
            for case, milliseconds in steps.items():
                turns.append(Turn(number, case, tree.name, {"whole step, ms": milliseconds}, others))
                print_progress(turns[-1])
    return turns


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(PROGRAM, __doc__)
    for name in NAMES:
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="PATH", help="a checkout")
        parser.add_argument(f"--{name}-python", type=Path, metavar="PATH", help="the interpreter that runs it")
    parser.add_argument(
        "--clients", type=at_least_one, nargs="+", default=[1, 16, 64], metavar="N", help="with --step, rows"
    )
    parser.add_argument("--tiles", type=int, nargs="*", default=[], metavar="N", help="with --step, tiles of a prompt")
    parser.add_argument("--loads", choices=LOADS, nargs="+", default=["decode"], help="without --step")
    parser.add_argument("--requests", type=at_least_one, metavar="N", help="in each turn (default: 6 to 128)")
    parser.add_argument("--step", action="store_true", help="time whole steps instead of servers")
    parser.add_argument("--server-args", default="", help="further arguments of both servers, as one string")
    add_alternation_flags(parser)
    options = parser.parse_args(arguments)
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
        turns = alternate_steps(trees, options.rounds, cases)
    else:
        servers = [tree.server(shlex.split(options.server_args)) for tree in trees]
        loads = chosen_loads(options.loads, options.clients, num_requests=options.requests)
        turns = alternate_servers(servers, loads, options)
    shown = [{"name": tree.name, "folder": str(tree.folder), "python": str(tree.python)} for tree in trees]
    return finish(turns, NAMES, options, PROGRAM, arguments, trees=shown)


if __name__ == "__main__":
    run(PROGRAM, main)
