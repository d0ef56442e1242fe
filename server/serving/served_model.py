"""One served model: its engine, tokenizer, chat template, metrics and state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.interface.types import EngineState
from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.output_parsers.output_parser import OutputFormat
from server.output_parsers.reasoning_parser import choose_reasoning
from server.output_parsers.tool_call_syntaxes import choose_tool_call_syntax
from server.protocol.errors import ApiError, unavailable
from server.serving.adapters import Adapters
from server.serving.idle_sleep import IdleSleep
from server.serving.structured_output_manager import StructuredOutputManager
from server.startup.adapter_settings import paths_of
from server.startup.logs import log
from server.startup.model_settings import name_of
from server.startup.model_table import ModelTable, RequestDefaults
from server.startup.settings import ServerSettings
from server.structured_output.grammar_compiler import GrammarCompiler
from server.telemetry.metrics import Metrics
from server.text.detokenizer import HasTokenTexts, show_control_tokens
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient


class ModelState(StrEnum):
    """The state of a served model; the values are the wire names."""

    UNLOADED = "unloaded"  # a request loads it
    LOADING = "loading"
    READY = "ready"
    PAUSED = "paused"
    ASLEEP = "asleep"  # a request wakes it, unless an operator has put it to sleep
    FAILED = "failed"  # it could not be loaded; a request tries again


class Opened(NamedTuple):
    """What a model has once it is loaded."""

    engine: EngineClient
    text_model: TextModel
    structured_output: StructuredOutputManager
    idle_sleep: IdleSleep


class ServedModel:
    """One served model, from its load on."""

    def __init__(self, settings: ServerSettings, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the number of generations has changed; the settings are of this model alone."""
        self.settings = settings
        self.metrics = Metrics()
        self.is_open = False  # it was loaded once, so that requests can be checked and queued, even if it is asleep
        self.loading_stage: str | None = None  # None: it is not being loaded
        self.load_error: str | None = None  # why it could not be loaded, the last time
        self.is_ending = False  # its engine is being shut down, because it is served no more
        self._on_change = on_change
        self._opened: Opened | None = None
        self._loaded: TextModel | None = None  # with the defaults that its files recommend
        self._by_preset: dict[str, TextModel] = {}  # by the names of presets, with their defaults
        self._failure: asyncio.Future[None] | None = None  # of the engine
        self.adapters = Adapters(paths_of(settings.lora))
        if settings.takes_adapters:
            self.metrics.watch_adapters(self.adapters.use_now)
        self.answer_format = OutputFormat()  # how the model writes what is not content, where that is known
        self._grammars: GrammarCompiler | None = None
        self._generations: set[Generation] = set()
        self._num_submitting = 0  # requests of which some answers are not in the engine's queue yet
        self.submitting_many = asyncio.Lock()  # held by a request whose answers are queued in several turns
        self.num_aborts = 0  # how often everything was ended
        self._shown: dict[bool, HasTokenTexts] = {}  # by whether calls are looked for

    def open(self, engine: EngineClient, text_model: TextModel) -> None:
        """Ends the first load. The engine must have been started. Where it fails, the model is not open."""
        answer_format = OutputFormat(
            choose_reasoning(self.settings.reasoning_parser, text_model.chat_template),
            choose_tool_call_syntax(self.settings.tool_call_parser, text_model.chat_template),
            takes_others=self.settings.tool_call_parser is None,
        )
        grammars = GrammarCompiler(
            text_model.tokenizer,
            engine.model_info.vocab_size,
            timeout=self.settings.grammar_timeout,
            max_bytes=self.settings.max_grammar_bytes,
        )
        try:
            structured_output = StructuredOutputManager(
                text_model.tokenizer,
                engine.model_info.vocab_size,
                answer_format,
                grammars,
                closes_objects=self.settings.additional_properties == "closed",
            )
            # On a CPU the weights are in the host's memory already, and a copy of them would give nothing back.
            # Those of several hosts stay where they are.
            drops_weights = engine.model_info.device != "cpu" and self.settings.engine.num_hosts == 1
            seconds = self.settings.sleep_idle_seconds
            idle_sleep = IdleSleep(engine, seconds, drop_weights=drops_weights, on_failure=self.abort_all)
            idle_sleep.start()
        except BaseException:
            grammars.close()
            raise
        self.metrics.watch_engine(engine.stats)
        self._shown = {}
        self.answer_format, self._grammars = answer_format, grammars
        self._opened = Opened(engine, text_model, structured_output, idle_sleep)
        self._loaded = text_model
        self._set_defaults()
        self._failure = engine.failure
        self.is_open = True

    def change(self, settings: ServerSettings) -> None:
        """Takes over names, defaults of requests, and the time until it sleeps, while requests run."""
        before, self.settings = self.settings, settings
        self._set_defaults()
        if self.idle_sleep is not None and settings.sleep_idle_seconds != before.sleep_idle_seconds:
            self.idle_sleep.set_seconds(settings.sleep_idle_seconds)

    def keep_adapters(self, before: ServedModel) -> None:
        """Takes over the adapters that were loaded at run time into the model whose place this one takes."""
        settings = self.settings
        if settings.enable_lora and settings.model == before.settings.model:
            self.adapters.keep(before.adapters)
        elif dropped := before.adapters.loaded_later:
            log.warning("adapters_dropped", model=self.model_name, adapters=[each.name for each in dropped])

    def _set_defaults(self) -> None:
        if self._opened is None or self._loaded is None:
            return
        own, presets = (RequestDefaults(), ()) if self.table is None else (self.table.defaults, self.table.presets)
        self._opened = self._opened._replace(text_model=_with_defaults(self._loaded, own))
        self._by_preset = {}
        for preset in presets:
            text_model = _with_defaults(self._loaded, preset.defaults.over(own))
            self._by_preset |= dict.fromkeys(preset.names, text_model)

    def prepare_grammars(self) -> None:
        """Builds the grammar vocabulary before the first grammar needs it. Blocks all threads of the process."""
        if self._grammars is not None:
            self._grammars.prepare()

    async def close(self) -> None:
        """Ends what runs beside the requests; the engine belongs to somebody else."""
        if self.idle_sleep is not None:
            await self.idle_sleep.stop()
        if self._grammars is not None:
            await asyncio.to_thread(self._grammars.close)

    @property
    def idle_sleep(self) -> IdleSleep | None:
        """None before it is loaded."""
        return None if self._opened is None else self._opened.idle_sleep

    @property
    def _engine(self) -> EngineClient | None:
        return None if self._opened is None else self._opened.engine

    @property
    def is_in_memory(self) -> bool:
        """Whether the model's weights are in memory."""
        if self._engine is None:
            return False
        lifecycle = self._engine.lifecycle
        return lifecycle.state is EngineState.RUNNING or lifecycle.has_weights

    @property
    def state(self) -> ModelState:
        """The state that clients and operators see."""
        if self.loading_stage is not None:
            return ModelState.LOADING
        if self.has_failed or (self.load_error is not None and not self.is_in_memory):
            return ModelState.FAILED
        if self._engine is None:
            return ModelState.UNLOADED
        match self._engine.lifecycle.state:
            case EngineState.RUNNING:
                return ModelState.READY
            case EngineState.PAUSED:
                return ModelState.PAUSED
            case EngineState.ASLEEP:
                return ModelState.ASLEEP

    @property
    def is_alive(self) -> bool:
        """Whether the engine thread turns; a model that is not loaded, or whose engine shall end, is alive too."""
        return self._engine is None or self.is_ending or self._engine.is_alive

    @property
    def has_failed(self) -> bool:
        """Whether its engine has ended by a failure."""
        failure = self._failure
        return failure is not None and failure.done() and not failure.cancelled()

    @property
    def engine_state(self) -> EngineState:
        """The engine's lifecycle state: running, paused or asleep; RUNNING before the model is loaded."""
        return EngineState.RUNNING if self._engine is None else self._engine.lifecycle.state

    @property
    def engine(self) -> EngineClient:
        """Raises ApiError: the model is not loaded yet."""
        return self.opened.engine

    @property
    def model_name(self) -> str:
        """The name that clients know it by. Only a model without one of its own gets another when it is loaded."""
        if self.settings.served_model_name is not None:
            return self.settings.served_model_name
        return name_of(self.settings.model) if self._opened is None else self._opened.text_model.name

    def name_of(self, name: str | None) -> str:
        """The name that an answer says for a request: that of an adapter of this model, or else the model's own."""
        return name if name is not None and self.is_of_adapter(name) else self.model_name

    def is_of_adapter(self, name: str | None) -> bool:
        """Whether the name by which a request has found this model is, or was, that of one of its adapters."""
        return name is not None and self.settings.takes_adapters and name not in self.own_names

    @property
    def own_names(self) -> tuple[str, ...]:
        """All names of the model itself, and the one that it had before it was loaded."""
        if self.settings.served_model_name is not None:
            return (self.settings.served_model_name, *self.further_names)
        return (self.model_name, name_of(self.settings.model), *self.further_names)

    @property
    def table(self) -> ModelTable | None:
        """What a file says of the model; None where no file names it."""
        return self.settings.tables[0] if self.settings.tables else None

    @property
    def further_names(self) -> tuple[str, ...]:
        """The names besides `model_name` that requests may call it by."""
        return () if self.table is None else tuple(self.table.further_names)

    @property
    def is_pinned(self) -> bool:
        """Whether it never makes room for another model."""
        return self.table is not None and self.table.is_pinned

    def text_model_of(self, name: str | None) -> TextModel:
        """`text_model` with the defaults of requests that call it by this name; raises ApiError as `text_model`."""
        text_model = self.opened.text_model
        return text_model if name is None else self._by_preset.get(name, text_model)

    @property
    def text_model(self) -> TextModel:
        """Raises ApiError: the model is not loaded yet."""
        return self.opened.text_model

    @property
    def sees(self) -> bool:
        """Whether it is loaded and takes pictures."""
        return self._opened is not None and self._opened.text_model.pictures is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ApiError: the model is not loaded yet."""
        return self.text_model.tokenizer

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """Raises ApiError: the model is not loaded yet."""
        return self.text_model.sampling_defaults

    @property
    def generations(self) -> Collection[Generation]:
        """The running generations."""
        return self._generations

    @property
    def num_generations(self) -> int:
        """The number of running generations, including those that are still being queued; a drain waits for all."""
        return len(self._generations) + self._num_submitting

    @property
    def opened(self) -> Opened:
        """Raises ApiError: the model is not loaded yet."""
        if self._opened is None:
            raise self._not_loaded()
        return self._opened

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Counts a request of which some sequences are not in the engine's queue yet."""
        self._num_submitting += 1
        self._on_change()
        try:
            yield
        finally:
            self._num_submitting -= 1
            self._on_change()

    def add(self, generation: Generation) -> None:
        """Registers a running generation."""
        self._generations.add(generation)

    def remove(self, generation: Generation) -> None:
        """Unregisters a generation that has ended."""
        self._generations.discard(generation)
        self._on_change()

    def shown_tokenizer(self, request: GenerationRequest) -> HasTokenTexts:
        """Returns the tokenizer that decodes the answers; it shows control tokens that mark reasoning or tool calls."""
        tokenizer, has_tools = self.tokenizer, request.declares_tools
        is_chat = False
        for prompt in request.prompts:
            if prompt.tools is not None:
                is_chat, has_tools = True, has_tools or bool(prompt.tools)
        if not is_chat:
            return tokenizer
        shown = self._shown.get(has_tools)
        if shown is None:
            shown = self._shown[has_tools] = show_control_tokens(
                tokenizer, self.answer_format.markers(with_calls=has_tools)
            )
        return shown

    def abort_all(self) -> None:
        """Every generation ends with finish_reason "abort", also one of which some answers are not queued yet."""
        self.num_aborts += 1
        for generation in self._generations:
            generation.abort()

    def fail_to_load(self, reason: str) -> None:
        """Records why the model could not be loaded, and ends the requests in its queue with that error."""
        self.load_error = reason
        if self._engine is not None:
            self._engine.end_streams(f"the model cannot be loaded: {reason}")

    def _not_loaded(self) -> ApiError:
        if self.loading_stage is not None:
            return unavailable(f"the model is loading ({self.loading_stage})", "loading")
        return unavailable(f"the model {self.model_name} is not loaded", "not_loaded")


def _with_defaults(text_model: TextModel, defaults: RequestDefaults) -> TextModel:
    return text_model.with_defaults(defaults.sampling, defaults.template_variables) if defaults else text_model
