"""Compares embeddings of Eagre with those of other servers: the same texts over HTTP, alternating.

    python -m benchmarks.embeddings --llama-server build/bin/llama-server --llama-model minilm-f32.gguf
    python -m benchmarks.embeddings --server OpenVINO=http://127.0.0.1:9000 --texts 1 64 --eagre-args "--dtype float32"

A turn asks a server for the embeddings of N texts, again and again, one request after the other by one connection. Each
request has texts of its own, 8 to 48 words of the documentation in random order, which is what a paragraph of a search
index has. Servers that were started here are paused while another one is measured; those of --server run already, and
their processor time is counted where the address ends in #PID. The first request of a turn is not counted, but its
vectors must be Eagre's, within --distance.
"""

import argparse
import contextlib
import http.client
import random
import re
import shlex
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import orjson

from benchmarks.peers import num_processors
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.resources import time_of
from benchmarks.serving.server_process import ROOT, ServerFailed, ServerProcess

PROGRAM = "benchmarks.embeddings"
MODEL = "all-minilm-l6-v2"
LEAST_WORDS, MOST_WORDS = 8, 48  # of a text
TIMEOUT_S = 120.0


def words_of_the_documentation() -> list[str]:
    return [word for file in sorted(ROOT.glob("docs/*.md")) for word in re.findall(r"[a-z]+", file.read_text().lower())]


def draw_texts(draw: random.Random, words: Sequence[str], count: int) -> list[str]:
    return [" ".join(draw.choices(words, k=draw.randint(LEAST_WORDS, MOST_WORDS))) for _ in range(count)]


class EmbeddingServer:
    """A server that answers /v1/embeddings; one that was started here is paused between its turns.

    The fragment of a URL is the id of the process of one that runs already.
    """

    def __init__(self, url: str, process: ServerProcess | None = None) -> None:
        self._address = urlsplit(url)
        self._process = process

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        if self._process is not None:
            self._process.resume()
        try:
            yield
        finally:
            if self._process is not None:
                self._process.pause()

    def measure(self, batches: Sequence[Sequence[str]]) -> tuple[np.ndarray, dict[str, float]]:
        """The vectors of the first batch, which is not counted, and the figures of the others."""
        connection = http.client.HTTPConnection(self._address.netloc, timeout=TIMEOUT_S)
        with self.awake(), contextlib.closing(connection):
            vectors = _embed(connection, batches[0])
            before, taken = self._processor_time(), []
            for batch in batches[1:]:
                began = time.perf_counter()
                _embed(connection, batch)
                taken.append(time.perf_counter() - began)
            after = self._processor_time()
        num_texts = sum(map(len, batches[1:]))
        figures = {"texts/s": num_texts / sum(taken), "request p50, ms": 1000 * statistics.median(taken)}
        if before is not None and after is not None:
            figures["texts/CPU-s"] = num_texts / max(after - before, 0.01)  # the system counts in steps of 10 ms
        return vectors, figures

    def _processor_time(self) -> float | None:
        if self._process is not None:
            return time_of(self._process.pid)
        return time_of(int(self._address.fragment)) if self._address.fragment else None


def _embed(connection: http.client.HTTPConnection, texts: Sequence[str]) -> np.ndarray:
    """The vectors of texts, of length 1; raises ServerFailed."""
    body = orjson.dumps({"model": MODEL, "input": texts, "encoding_format": "float"})
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise ServerFailed(f"the answer has the status {response.status}: {content[:200]!r}")
    answer = orjson.loads(content)
    vectors = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
    normed: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normed


def contender(
    name: str, server: EmbeddingServer, words: Sequence[str], num_texts: int, num_requests: int, distance: float,
    expected: dict[tuple[int, int], np.ndarray],
) -> Callable[[int], Measured]:  # fmt: skip
    """`expected` are the first vectors of the first contender, by the seed and the number of texts."""

    def measure(seed: int) -> Measured:
        draw = random.Random(seed)
        batches = [draw_texts(draw, words, num_texts) for _ in range(1 + num_requests)]
        vectors, figures = server.measure(batches)
        others = expected.setdefault((seed, num_texts), vectors)
        farthest = float((1 - (vectors * others).sum(axis=1)).max())
        if farthest > distance:
            raise ServerFailed(f"the vectors of {name} are up to {farthest:.4f} away from those of the first server")
        return Measured(figures)

    return measure


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=MODEL, help="for Eagre: a name or a path")
    parser.add_argument("--eagre-args", default="", help="further arguments of `eagre serve`, as one string")
    parser.add_argument("--llama-server", metavar="PATH", help="the executable of llama.cpp's server")
    parser.add_argument("--llama-model", metavar="PATH", help="the model's GGUF file for llama.cpp")
    parser.add_argument("--llama-args", default="", help="further arguments of llama-server, as one string")
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME=URL[#PID]", help="one that runs; again for more"
    )
    parser.add_argument("--texts", type=at_least_one, nargs="+", default=[1, 8, 64], metavar="N", help="of a request")
    parser.add_argument(
        "--requests", type=at_least_one, metavar="N", help="in each turn (default: 20 to 100, by texts)"
    )
    parser.add_argument("--distance", type=float, default=0.01, help="1 - cosine, which no vector may exceed")
    add_alternation_flags(parser, rounds=5)
    options = parser.parse_args(arguments)
    if options.llama_server is not None and shutil.which(options.llama_server) is None:
        parser.error(f"--llama-server: there is no executable {options.llama_server}")
    if (options.llama_server is None) != (options.llama_model is None):
        parser.error("--llama-server and --llama-model belong together")
    for server in options.server:
        if not re.fullmatch(r"[^=]+=http://[^#]+(#\d+)?", server):
            parser.error(f"--server: {server} is no NAME=http://… or NAME=http://…#PID")
    return options


def llama_cpp(options: argparse.Namespace) -> ServerProcess:
    executable = str(Path(str(shutil.which(options.llama_server))).resolve())
    model, threads = str(Path(options.llama_model).resolve()), str(num_processors())
    flags = [
        "--embeddings", "--threads", threads, "--threads-batch", threads, "--parallel", "64", "--ctx-size", "32768",
        "--batch-size", "8192", "--ubatch-size", "8192", "--offline", "--no-ui", "--log-verbosity", "1",
    ]  # fmt: skip

    def command(port: int) -> list[str]:
        return [
            executable, "--model", model, "--host", "127.0.0.1", "--port", str(port), *flags,
            *shlex.split(options.llama_args),
        ]  # fmt: skip

    return ServerProcess("llama.cpp", command, readiness="/health")


@contextlib.contextmanager
def running(options: argparse.Namespace) -> Iterator[Mapping[str, EmbeddingServer]]:
    processes = [ServerProcess.eagre(["--model", options.model, *shlex.split(options.eagre_args)])]
    if options.llama_server is not None:
        processes.append(llama_cpp(options))
    with contextlib.ExitStack() as stack:
        servers = {}
        for process in processes:
            stack.enter_context(process)
            stack.callback(process.resume)  # or SIGTERM would not be delivered
            process.pause()
            servers[process.name] = EmbeddingServer(process.url, process)
        for server in options.server:
            name, _, url = server.partition("=")
            servers[name] = EmbeddingServer(url)
        yield servers


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    words, turns = words_of_the_documentation(), []
    expected: dict[tuple[int, int], np.ndarray] = {}
    with running(options) as servers:
        for num_texts in options.texts:
            num_requests = options.requests or max(20, 100 // num_texts)
            contenders = {
                name: contender(name, server, words, num_texts, num_requests, options.distance, expected)
                for name, server in servers.items()
            }
            for measure in contenders.values():
                measure(options.seed)  # threads wake, and memory is touched for the first time
            rounds = range(options.rounds)
            turns += alternate(
                f"{num_texts} texts", contenders, rounds, seeds=random.Random(options.seed),
                max_others=options.max_others,
            )  # fmt: skip
        names = list(servers)
    return finish(turns, names, options, PROGRAM, arguments, ratios=[(names[0], name) for name in names[1:]])


if __name__ == "__main__":
    run(PROGRAM, main)
