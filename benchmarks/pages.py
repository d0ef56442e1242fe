"""Measures page operations per second: our pool, free queue and hashing against vLLM's own Python classes.

    python -m benchmarks.pages                                            # ours alone
    python -m benchmarks.pages --vllm-python /path/to/venv/bin/python     # both, alternating

vLLM is no dependency: its side runs in a process of the interpreter given, which has vLLM installed. Ours runs in a
process of its own too; the two alternate and do the same work on the same numbers. Both hash with SHA-256: vLLM its
pickled tuples, as by default.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.microbenchmarks.page_workloads import WORKLOADS
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import new_parser, run
from benchmarks.serving.server_process import ROOT

PROGRAM = "benchmarks.pages"
WORKER = "benchmarks.microbenchmarks.page_workloads"


def measure_in_subprocess(python: str, side: str, workloads: Sequence[str], seed: int) -> Measured:
    """The rates of one side in a process of the interpreter; raises OSError or RuntimeError where it cannot run."""
    command = [python, "-m", WORKER, side, str(seed), *workloads]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2] or f"the worker exited with {done.returncode}")
    return Measured(json.loads(done.stdout.splitlines()[-1]))  # libraries may print before


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--vllm-python", metavar="PATH", help="an interpreter that has vLLM")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    add_alternation_flags(parser, rounds=7)
    options = parser.parse_args(arguments)
    contenders = {"eagre": partial(measure_in_subprocess, sys.executable, "eagre", options.workloads)}
    if options.vllm_python is None:
        print("vLLM's side is left out: --vllm-python names an interpreter that has it")
    else:
        vllm = partial(measure_in_subprocess, options.vllm_python, "vllm", options.workloads)
        try:
            vllm(options.seed)
            contenders["vllm"] = vllm
        except (OSError, RuntimeError) as error:
            print(f"vLLM's side is left out: {error}")
    load = "million operations/s"
    turns = alternate(load, contenders, range(options.rounds), max_others=options.max_others)
    return finish(turns, list(contenders), options, PROGRAM, arguments)


if __name__ == "__main__":
    run(PROGRAM, main)
