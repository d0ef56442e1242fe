"""The definition of a load: the number of requests, their times, and their prompts."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Route = Literal["completions", "chat", "websocket"]
PromptKind = Literal["ids", "text"]
T = TypeVar("T")

# Common words, each of which is about one token together with the space before it.
WORDS = (
    "able about after again air all along always animal answer around back because before below better between big "
    "black book boy car change children city close cold country day door earth end every eyes face family far father "
    "feet few field fire fish food form friend game girl good great green ground group hand hard head hear help high "
    "home horse hot hour house idea island keep kind king land large late learn letter life light line list little long"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests to a server, with random tokens where they are not shared, against the prefix cache.

    Without `rate` the load is closed: each of `concurrency` clients sends its next request when its last one has ended.
    With it the load is open: requests arrive as a Poisson process, of which `concurrency` bounds how many run at once.
    """

    url: str = field(repr=False)  # http://host:port; may have a password
    model: str
    api_key: str | None = field(default=None, repr=False)
    route: Route = "completions"
    concurrency: int = 1  # clients; 0, only with a rate, is no limit
    rate: float | None = None  # requests per second on average
    num_requests: int = 4  # in all; 0, only with a duration, is no limit
    duration: float | None = None  # seconds after which no further request is sent
    num_prompt_tokens: int = 128  # exact for ids, approximate for text
    num_shared_tokens: int = 0  # how many tokens at the start of the prompt are the same in all requests
    num_output_tokens: int = 128
    num_connections: int = 1  # WebSockets that the clients share; over HTTP each client has its own connection
    keep_alive: bool = True  # over HTTP: a client uses one connection for all its requests
    return_token_ids: bool = True  # over HTTP: chunks have token ids; without, a chunk counts as one token
    prompt_kind: PromptKind = "ids"  # chats have text
    token_ids: tuple[int, int] = (1000, 20000)  # prompts are drawn from here, the end excluded
    ignore_eos: bool = True
    parameters: dict[str, Any] = field(default_factory=lambda: {"temperature": 0})  # of every request
    dataset: tuple[dict[str, Any], ...] = ()  # parts of bodies, used in turn instead of random prompts
    seed: int = 0
    timeout: float = 600.0  # seconds for one request

    def token_prompts(self) -> Iterator[list[int]]:
        rng = random.Random(self.seed)
        return self._prompts(lambda: rng.randrange(*self.token_ids))

    def text_prompts(self) -> Iterator[str]:
        rng = random.Random(self.seed)
        return (" ".join(words) for words in self._prompts(lambda: rng.choice(WORDS)))

    def _prompts(self, draw: Callable[[], T]) -> Iterator[list[T]]:
        shared = [draw() for _ in range(self.num_shared_tokens)]
        num_own = self.num_prompt_tokens - self.num_shared_tokens
        for _ in self._numbers():
            yield [*shared, *(draw() for _ in range(num_own))]

    def _numbers(self) -> Iterator[int]:
        return iter(range(self.num_requests)) if self.num_requests else itertools.count()

    def bodies(self) -> Iterator[dict[str, Any]]:
        common = {"model": self.model, "max_tokens": self.num_output_tokens, **self.parameters}
        if self.ignore_eos:
            common["ignore_eos"] = True
        for part in self._parts():
            yield {**common, **part}

    def _parts(self) -> Iterator[dict[str, Any]]:
        if self.dataset:
            return (self.dataset[number % len(self.dataset)] for number in self._numbers())
        if self.route == "chat":
            return ({"messages": [{"role": "user", "content": text}]} for text in self.text_prompts())
        if self.prompt_kind == "text":
            return ({"prompt": text} for text in self.text_prompts())
        return ({"prompt": token_ids} for token_ids in self.token_prompts())
