"""`eagre bench`: runs every load of a plan on every server in turn, and prints and writes the figures."""

import argparse
import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import orjson

from server.cli.bench import table
from server.cli.bench.comparison import Turn, compare, ratio_head, ratio_rows
from server.cli.bench.html_report import html_report
from server.cli.bench.live_figures import LiveFigures
from server.cli.bench.load.load import Load
from server.cli.bench.plan import NamedLoad, Plan, Server, plan_of
from server.cli.bench.results import results_of
from server.cli.client.address import DEFAULT_URL, check_address, first_key
from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import ServerClient
from server.startup.plain_text import without_controls


class Bench:
    def __init__(self, plan: Plan, servers: Sequence[Server]) -> None:
        self._plan = plan
        self._servers = servers
        self._seeds = random.Random(plan.seed)
        self.turns: list[Turn] = []
        self.loads: list[Load] = []  # one for each turn
        self.is_complete = False

    async def run(self) -> None:
        """Prints a line for each turn, also for one that a cancellation ends; raises NoAnswer."""
        for server in self._servers:
            await self._warm_up(server)
        print(table.headings(), flush=True)
        for number in range(self._plan.num_rounds):
            for load in self._plan.loads:
                seed = self._next_seed()  # the same prompts for both servers, and others in each round
                for server in self._servers if number % 2 == 0 else self._servers[::-1]:
                    await self._turn(number, load, server, seed)
        self.is_complete = True

    async def _warm_up(self, server: Server) -> None:
        if self._plan.warm_up is None:
            return
        load = Load(NamedLoad("", self._plan.warm_up).on(server, self._next_seed()))
        with _connection_errors(server):
            await load.run()
        if errors := load.report().errors:
            raise NoAnswer(f"the warm-up at {server.address} failed: {without_controls(next(iter(errors)))}")

    async def _turn(self, number: int, named: NamedLoad, server: Server, seed: int) -> None:
        load = Load(named.on(server, seed))
        name = f"{named.name} {server.name}".strip()
        figures = LiveFigures(load)

        def draw() -> str:
            figures.update()
            return table.live_line(name, load, figures)

        try:
            with table.live(draw), _connection_errors(server):
                await load.run()
        finally:
            if load.traces:
                report = load.report()
                self.turns.append(Turn(number, named.name, server.name, report))
                self.loads.append(load)
                print(table.line_of(name, report))
                for note in table.notes_on(load, report):
                    table.print_text(f"  {note}")
                sys.stdout.flush()

    def _next_seed(self) -> int:
        return self._seeds.getrandbits(32)


def run_bench(options: argparse.Namespace, api_key: str | None) -> int:
    """Runs the command; exits with 1 if requests failed, with 130 after Ctrl-C; raises NoAnswer."""
    for flag, path in (("--json", options.json), ("--html", options.html)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise NoAnswer(f"{flag} {path} cannot be written: there is no such folder, or it is a folder itself")
    plan = plan_of(options)
    servers = asyncio.run(_servers(options, api_key))
    bench = Bench(plan, servers)
    try:
        asyncio.run(bench.run())
        status = 1 if any(turn.report.num_failed for turn in bench.turns) else 0
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        status = 130
    except NoAnswer as error:
        if not bench.turns:
            raise
        print(f"eagre: {without_controls(str(error))}", file=sys.stderr)  # what was measured before still counts
        status = 1
    table.print_text(table.LEGEND)
    names = (servers[0].name, servers[-1].name)
    ratios = compare(bench.turns, names) if len(servers) == 2 else []
    if ratios:
        print()
        table.print_table(ratio_head(servers), ratio_rows(ratios))
    if options.json is not None:
        results = results_of(plan, servers, bench.turns, ratios, is_complete=bench.is_complete)
        _write(options.json, "--json", orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    if options.html is not None:
        page = html_report(plan, servers, bench.turns, bench.loads, ratios, is_complete=bench.is_complete)
        _write(options.html, "--html", page.encode("utf-8", "replace"))
    return status


async def _servers(options: argparse.Namespace, api_key: str | None) -> list[Server]:
    url, other_key = options.url or DEFAULT_URL, first_key(options.compare_api_key)
    check_address(url, api_key)
    if options.compare:
        check_address(options.compare, other_key)
    first = Server("A" if options.compare else "", url, options.model or "", api_key)
    servers = [first if options.model else replace(first, model=await _first_model(first))]
    if options.compare:
        second = Server("B", options.compare, options.compare_model or options.model or "", other_key)
        servers.append(second if second.model else replace(second, model=await _first_model(second)))
    for server in servers:
        print(f"{server.name + ': ' if server.name else ''}{without_controls(server.model)} at {server.address}")
    return servers


async def _first_model(server: Server) -> str:
    answer = await ServerClient(server.url, server.api_key).get("/v1/models")
    try:
        return str(orjson.loads(answer)["data"][0]["id"])
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise NoAnswer(f"{server.address} lists no model; name one with --model") from error


@contextmanager
def _connection_errors(server: Server) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        raise NoAnswer(f"{server.address} cannot be measured: {str(error) or type(error).__name__}") from error


def _write(path: Path, flag: str, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise NoAnswer(f"{flag} {path} cannot be written: {error.strerror}") from error
    print(f"written: {path}")
