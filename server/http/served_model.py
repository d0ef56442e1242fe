"""The served model as the routes see it: its engine, its text side, its metrics, and whether it takes work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from aiohttp import web

from engine.border.types import EngineError, EngineState
from server.answering.generation import Generation
from server.answering.generation_request import GenerationRequest
from server.answering.idle_sleep import IdleSleep
from server.answering.metrics import Metrics
from server.answering.prompts import prepare
from server.answering.running_requests import RunningRequest, RunningRequests
from server.doors.keyring import ANYBODY, Tenant
from server.doors.preparation import Preparation
from server.doors.workers import Workers
from server.grammar.compiled_grammar import CompiledGrammar
from server.grammar.compiler import GrammarCompiler
from server.grammar.vocabulary import GrammarVocabulary
from server.http.access_log import IgnoredParameters
from server.startup.settings import ServerSettings
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer
from server.tools.syntaxes import Syntax, choose_syntax
from server.wire.errors import ApiError, model_not_found, unavailable

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient


class Phase(StrEnum):
    """Where a served model stands; the values are the wire names."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ServedModel:
    """One served model, from loading to draining."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.workers = Workers()
        self.preparation = Preparation(
            max_bytes=settings.max_preparing_bytes, max_requests=settings.max_preparing_requests
        )
        self.started_at = int(time.time())
        self.loading_stage = "starting"
        self._is_draining = False
        self._engine: EngineClient | None = None
        self._text_model: TextModel | None = None
        self.tool_syntax: Syntax | None = None  # in which the model writes tool calls, where that is known
        self._grammars: GrammarCompiler | None = None
        self.requests = RunningRequests()
        self.ignored_parameters = IgnoredParameters(is_strict=settings.strict_parameters)
        self.idle_sleep: IdleSleep | None = None
        self._generations: set[Generation] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, engine: EngineClient, text_model: TextModel, vocabulary: GrammarVocabulary | None = None) -> None:
        """Ends the loading phase. The engine must have been started.

        Args:
            vocabulary: that of `text_model`; None: it is made when a grammar is compiled.
        """
        self._engine = engine
        self._text_model = text_model
        self.tool_syntax = choose_syntax(self.settings.tool_call_parser, text_model.chat_template)
        self._grammars = GrammarCompiler(
            text_model.tokenizer,
            engine.model_info.vocab_size,
            timeout=self.settings.grammar_timeout,
            max_bytes=self.settings.max_grammar_bytes,
            vocabulary=vocabulary,
        )
        self.metrics.watch_engine(engine.stats)
        seconds = self.settings.sleep_idle_seconds
        if seconds is not None:
            # On a CPU the weights are in the host's memory already, and a copy of them would give nothing back.
            drops_weights = engine.model_info.device != "cpu"
            self.idle_sleep = IdleSleep(engine, seconds, drop_weights=drops_weights, on_failure=self.abort_all)
            self.idle_sleep.start()

    async def close(self) -> None:
        """Ends what runs beside the requests; the engine belongs to somebody else."""
        if self.idle_sleep is not None:
            await self.idle_sleep.stop()
        self.workers.close()
        if self._grammars is not None:
            await asyncio.to_thread(self._grammars.close)

    @property
    def phase(self) -> Phase:
        if self._engine is not None and self._engine.failure.done() and not self._engine.failure.cancelled():
            return Phase.FAILED
        if self._is_draining:
            return Phase.DRAINING
        return Phase.LOADING if self._engine is None else Phase.READY

    @property
    def is_alive(self) -> bool:
        """Whether the engine thread turns; a server that still loads is alive too."""
        return self._engine is None or self._engine.is_alive

    @property
    def engine_state(self) -> EngineState:
        """What the engine's operator, or its idleness, has made of it; RUNNING while it loads."""
        return EngineState.RUNNING if self._engine is None else self._engine.lifecycle.state

    @property
    def engine(self) -> EngineClient:
        """
        Raises:
            ApiError: the model is still loading.
        """
        if self._engine is None:
            raise self._refusal(Phase.LOADING)
        return self._engine

    @property
    def model_name(self) -> str:
        """
        Raises:
            ApiError: the model is still loading.
        """
        if self.settings.served_model_name is not None:
            return self.settings.served_model_name
        if self._text_model is None:
            raise self._refusal(Phase.LOADING)
        return self._text_model.name

    @property
    def tokenizer(self) -> Tokenizer:
        """
        Raises:
            ApiError: the model is still loading.
        """
        if self._text_model is None:
            raise self._refusal(Phase.LOADING)
        return self._text_model.tokenizer

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """
        Raises:
            ApiError: the model is still loading.
        """
        if self._text_model is None:
            raise self._refusal(Phase.LOADING)
        return self._text_model.sampling_defaults

    @property
    def num_generations(self) -> int:
        return len(self._generations)

    def check_accepting(self) -> None:
        """
        Raises:
            ApiError, EngineError: the model is not ready; both mean 503.
        """
        if self.phase is not Phase.READY:
            raise self._refusal(self.phase)

    def check_model(self, name: str | None) -> None:
        """
        Raises:
            ApiError: 404 for any name but the served model's.
        """
        if name is not None and name != self.model_name:
            raise model_not_found(name, self.model_name)

    @asynccontextmanager
    async def generate(
        self, request: GenerationRequest, *, tenant: Tenant = ANYBODY, request_ids: Sequence[str] = ()
    ) -> AsyncIterator[Generation]:
        """Submits `request`. Whatever still runs when the context is left is aborted.

        Args:
            tenant: whose request it is.
            request_ids: names by which the tenant may cancel it.

        Raises:
            ApiError, InvalidParameter, QueueFull, EngineError: the request is refused.
        """
        request = replace(
            request,
            priority=tenant.check_priority(request.priority),
            cache_salt=tenant.cache_salt(request.cache_salt),
            tenant=tenant.name,
        )
        use = nullcontext() if self.idle_sleep is None else self.idle_sleep.use()
        with self.requests.hold(tenant.salt, request_ids) as running, use:
            async with self._generate(request, running) as generation:
                yield generation

    @asynccontextmanager
    async def _generate(self, request: GenerationRequest, running: RunningRequest) -> AsyncIterator[Generation]:
        self.check_accepting()
        self.check_model(request.model)
        if self._engine is None or self._text_model is None:
            raise self._refusal(Phase.LOADING)
        prompts = await prepare(request, self._text_model, self._engine, self.workers)
        grammar = await self._compile_grammar(request)
        self.check_accepting()  # once more, because a long prompt takes a while to tokenise, and a grammar to compile
        generation = Generation.submit(
            request,
            prompts,
            engine=self._engine,
            text_model=self._text_model,
            metrics=self.metrics,
            grammar=grammar,
        )
        self._generations.add(generation)
        self._idle.clear()
        running.begin(generation)
        try:
            async with generation:
                yield generation
        finally:
            self._generations.discard(generation)
            if not self._generations:
                self._idle.set()

    async def _compile_grammar(self, request: GenerationRequest) -> CompiledGrammar | None:
        """
        Raises:
            InvalidParameter: the grammar is refused, or takes too long.
        """
        wish = request.grammar
        grammar = None if wish is None else wish.to_grammar()
        if wish is None or grammar is None or self._grammars is None:
            return None
        return await self._grammars.compile(grammar, wish.parameter)

    def start_draining(self) -> None:
        """Refuses new work from now on."""
        self._is_draining = True

    async def wait_idle(self, seconds: float) -> bool:
        """Whether every running generation came to its end within `seconds`."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def abort_all(self) -> None:
        """Every running generation ends with finish_reason "abort"."""
        for generation in self._generations:
            generation.abort()

    def _refusal(self, phase: Phase) -> ApiError | EngineError:
        match phase:
            case Phase.LOADING:
                return unavailable(f"the model is loading ({self.loading_stage})", "loading")
            case Phase.DRAINING:
                return unavailable("the server is shutting down", "draining")
        return EngineError("the engine has failed")


SERVED_MODEL = web.AppKey("served_model", ServedModel)
