"""The plan of a measurement: its servers and its loads, made from the flags."""

import argparse
import random
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from server.cli.bench.load.dataset import read_dataset
from server.cli.bench.load.workload import Workload
from server.cli.client.address import shown
from server.cli.client.errors import NoAnswer

_RATED_SECONDS = 30  # of requests at a rate, by default
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Server:
    name: str  # in the table; empty where there is only one
    url: str = field(repr=False)  # may have a password
    model: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """The URL for output, without a password."""
        return shown(self.url)


@dataclass(frozen=True, slots=True)
class NamedLoad:
    """A load without its server and its seed."""

    name: str
    workload: Workload

    def on(self, server: Server, seed: int) -> Workload:
        """The load on one server; the seed determines the prompts."""
        return replace(self.workload, url=server.url, model=server.model, api_key=server.api_key, seed=seed)


@dataclass(frozen=True, slots=True)
class Plan:
    """Loads, each of which is put on every server in each round."""

    loads: tuple[NamedLoad, ...]
    num_rounds: int
    warm_up: Workload | None
    seed: int


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan that the flags say; raises NoAnswer that names a flag with a wrong file or value, or a contradiction."""
    if options.shared_prefix > options.input_tokens:
        raise NoAnswer(f"--shared-prefix {options.shared_prefix} is more than --input-tokens {options.input_tokens}")
    if options.connections > 1 and options.route != "websocket":
        raise NoAnswer("--connections is for --route websocket; over HTTP each client has its own")
    if options.compare is None and (options.compare_model or options.compare_api_key):
        raise NoAnswer("--compare-model and --compare-api-key want --compare")
    parameters = {"temperature": options.temperature, **_object(options.extra_body)}
    dataset = () if options.dataset is None else read_dataset(options.dataset, options.route)
    common = Workload(
        url="", model="", route=options.route, duration=options.duration, num_prompt_tokens=options.input_tokens,
        num_shared_tokens=options.shared_prefix, num_output_tokens=options.output_tokens,
        num_connections=options.connections, return_token_ids=False, prompt_kind="text",
        ignore_eos=not dataset if options.ignore_eos is None else options.ignore_eos,
        parameters=parameters, dataset=dataset, timeout=options.timeout,
        # llama.cpp's server ends connections behind streams without saying so, and a request on one would be lost.
        keep_alive=options.compare is None,
    )  # fmt: skip
    loads = tuple(
        NamedLoad(
            _name(concurrency, rate),
            replace(
                common,
                concurrency=concurrency,
                rate=rate,
                num_requests=_num_requests(options, concurrency, rate, dataset),
            ),
        )
        for rate in options.rate or [None]
        for concurrency in options.concurrency or ([1, 4, 16] if options.rate is None else [0])
    )
    warm_up = replace(
        common, num_requests=options.num_warmups, num_output_tokens=min(_WARM_UP_TOKENS, options.output_tokens),
        duration=None, num_shared_tokens=0,
    )  # fmt: skip
    return Plan(
        loads,
        options.rounds or (3 if options.compare else 1),
        warm_up if options.num_warmups else None,
        random.SystemRandom().getrandbits(32) if options.seed is None else options.seed,
    )


def _num_requests(
    options: argparse.Namespace, concurrency: int, rate: float | None, dataset: tuple[dict[str, Any], ...]
) -> int:
    if options.requests is not None or options.duration is not None:
        return options.requests or 0
    if dataset:
        return len(dataset)
    if rate is not None:
        return max(1, round(rate * _RATED_SECONDS))
    return max(8, 4 * concurrency)


def _name(concurrency: int, rate: float | None) -> str:
    clients = "1 client" if concurrency == 1 else f"{concurrency} clients"
    return clients if rate is None else f"{rate:g}/s" + (f" by {concurrency}" if concurrency else "")


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NoAnswer(f"--extra-body: {error}") from error
    if not isinstance(value, dict):
        raise NoAnswer("--extra-body is not a JSON object")
    return value
