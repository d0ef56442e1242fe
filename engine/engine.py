"""The engine of one model: weights, pages, programs and scheduler, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import jax

from cache.page import NULL_PAGE_ID
from cache.page_groups import group_layers
from cache.pool import PagePool
from cache.states import StateLayout, num_snapshots_for, pages_beside_states, snapshot_interval
from cache.storage import PAGE_SIZE_BY_BACKEND, KVLayout, cache_budget, check_num_pages, pages_that_fit
from engine.adapters.adapted_products import with_adapters
from engine.adapters.adapter_stacks import AdapterStacks
from engine.adapters.adapter_weights import AdapterWeights
from engine.adapters.targets import targets_of
from engine.backends.backends import kv_dtype
from engine.backends.base.backend import Backends
from engine.backends.base.model_config import ModelConfig
from engine.backends.base.token_layout import pages_per_block
from engine.engine_plan import EnginePlan
from engine.interface.address import KVEndpoint
from engine.interface.config import TILE_GRAIN, TILE_SIZE, EngineConfig, ModelInfo
from engine.interface.cpu import cpu_features
from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy, EngineStats, KVOffloadStats, Progress
from engine.kv_events.publisher import KVEventPublisher
from engine.kv_transfer.kv_offload import KVOffload, files_of
from engine.loop import EngineLoop
from engine.models.open_model import OpenModel, open_model
from engine.models.registry import is_headless, names_in_gguf
from engine.multihost.group import Group, open_group
from engine.parallel.placement import Devices, choose_devices
from engine.schedule.picture_cache import PictureCache
from engine.schedule.request_event import StepEvent
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.state_snapshots import StateSnapshots
from engine.step.compiled import CompileCounter
from engine.step.device_runner import DeviceRunner
from engine.step.jax_cache import JaxCompilationCache
from engine.step.page_io import page_parts
from engine.step.picture_encoding import PictureEncoding, picture_input, picture_positions
from engine.step.shapes import ShapeTable
from engine.timeline import Timeline
from engine.weights.host_memory import give_back_freed
from engine.weights.layout import Params, Precision
from engine.weights.loader import bytes_in_memory

# How long a start waits for the folder of pages, so that the first requests find theirs. Of a large model that is read
# for the first time, the digest takes longer, and it opens later.
_MOST_OPENING_SECONDS = 5.0


class Engine:
    """All parts of the engine of one model except its thread and its client."""

    def __init__(
        self,
        config: EngineConfig,
        layout: KVLayout,
        model_info: ModelInfo,
        make_runner: Callable[[SequenceBuffer, ShapeTable], DeviceRunner],
        progress: Progress,
        make_scheduler: Callable[..., Scheduler] = Scheduler,
    ) -> None:
        """Builds the engine and compiles every shape."""
        self.config = config
        self.model_info = model_info
        self.model_path: Path | None = None  # of the file or folder that has the weights; None: they came otherwise
        self._kv_offload: KVOffload | None = None  # None: no pages are kept in a folder
        self._group = Group()
        self._is_asleep = False
        self._kv_events: KVEventPublisher | None = None
        self._compile_counter = CompileCounter()
        self.pool = PagePool(layout.num_pages)
        snapshots = None
        if layout.states.num_snapshots:
            self.pool.snapshots = PagePool(layout.states.num_snapshots + 1)
            snapshots = StateSnapshots(
                self.pool.snapshots, layout.states, layout.page_size, _interval(layout), TILE_SIZE
            )
        block = pages_per_block(layout.page_size)
        pages_per_request = -(-model_info.max_model_len // (layout.page_size * block)) * block
        uses_mrope = model_info.pictures is not None and model_info.pictures.uses_mrope
        buffer = SequenceBuffer(
            config.max_num_seqs, model_info.max_model_len, pages_per_request,
            num_groups=layout.num_groups, uses_mrope=uses_mrope,
        )  # fmt: skip
        self.scheduler = make_scheduler(
            self.pool,
            buffer,
            page_size=layout.page_size,
            max_num_batched_tokens=config.batched_tokens(is_encoder=model_info.is_encoder),
            chunk_alignment=TILE_SIZE,
            vocab_size=model_info.vocab_size,
            eos_token_ids=frozenset(config.eos_token_ids),
            # A token of an encoder depends on what follows it, so that no prefix can be shared.
            enable_prefix_caching=config.enable_prefix_caching and not model_info.is_encoder,
            num_scheduler_steps=config.decode_chunk,
            target_gap=config.target_gap,
            chunk_grain=TILE_GRAIN if model_info.matmul_backend == "native" else None,
            snapshots=snapshots,
            windows=(0,) if layout.groups is None else layout.groups.windows,
        )
        self.timeline = Timeline()
        self.runner = make_runner(buffer, _shape_table(config, model_info))
        self.pool.on_reach = self.runner.arrays.reach
        self.pictures: PictureEncoding | None = None  # None: the model sees none
        if layout.pictures is not None:
            self.pictures = _picture_encoding(self.runner, layout.pictures[0], model_info)
            self.scheduler.requests.pictures = self.pictures.cache
        try:
            self.runner.programs.compile(progress)
        except BaseException:
            self.runner.close()
            raise

    @classmethod
    def load(cls, path: Path, config: EngineConfig, progress: Progress) -> Engine:
        """Reads the weights of a model file and builds an engine for it; waits for all hosts where there are several.

        Raises:
            ModelError: the model cannot be served.
            ValueError: the configuration does not fit the model, the machine or the other hosts, or needs a package
                that is not installed.
            HostLost: another host is lost.
        """
        return cls.load_planned(EnginePlan.of(path, config), progress)

    @classmethod
    def load_planned(cls, plan: EnginePlan, progress: Progress) -> Engine:
        """As `load`, of a model whose files were checked."""
        group = open_group(plan.config, plan.opened, progress)
        try:
            with ExitStack() as undo:
                engine = cls._load_in(group, plan, progress, undo)
                group.become_ready()
                undo.pop_all()
        except BaseException as error:
            group.close(str(error) or repr(error))
            raise
        engine._group = group
        return engine

    @classmethod
    def _load_in(cls, group: Group, plan: EnginePlan, progress: Progress, undo: ExitStack) -> Engine:
        opened, config, max_model_len = plan.opened, plan.config, plan.max_model_len
        sizes = opened.config
        devices = plan.devices or choose_devices(config, opened.model)
        backends = devices.backends
        layout = _kv_layout(sizes, config, backends, max_model_len, is_encoder=opened.model.is_encoder)
        layout = replace(layout, pictures=picture_positions(opened.model.encoder, max_model_len))
        layout = replace(layout, num_pages=group.settle(layout.num_pages))
        # So a request that could never fit into the pages is refused as too long, before it is queued.
        max_model_len = min(max_model_len, layout.longest_sequence(config.max_step_tokens))
        opened = opened.for_context(max_model_len)
        with _jax_cache(config, repr((opened.config, layout, backends.detail))):
            engine = cls._load(group, opened, config, devices, layout, max_model_len, progress, undo)
        give_back_freed()
        return engine

    @classmethod
    def _load(
        cls, group: Group, opened: OpenModel, config: EngineConfig, devices: Devices, layout: KVLayout,
        max_model_len: int, progress: Progress, undo: ExitStack,
    ) -> Engine:  # fmt: skip
        """Loads the weights and builds the engine; `undo` closes it if anything fails later."""
        sizes, backends = opened.config, devices.backends
        files = files_of(opened.path) if config.keeps_pages else None
        precision = Precision.of_engine(config)
        weights = opened.load(backends.weights, precision, progress)
        params, adapters = weights.params, None
        targets = targets_of(opened.model)
        if config.adapters is not None and targets:
            adapters = AdapterStacks(
                targets, config.adapters, backends.weights, precision, names_in_gguf(opened.architecture),
                devices.pairs, tensors=opened.tensors,
            )  # fmt: skip
            params, backends = adapters.attach(params), with_adapters(backends)
        model_info = ModelInfo(
            architecture=opened.architecture.name,
            quantization=opened.quantization,
            vocab_size=sizes.vocab_size,
            max_model_len=max_model_len,
            dtype=weights.dtype,
            num_parameters=weights.num_parameters,
            device=jax.default_backend(),
            matmul_backend=backends.for_products.name,
            attention_backend=backends.for_attention.name,
            backend_detail=backends.detail,
            pictures=picture_input(opened.model.encoder, layout.pictures, max_model_len, config.batched_tokens()),
            weight_bytes=bytes_in_memory(opened.tensors, backends.weights, precision),
            cache_bytes=layout.num_bytes,
            encoder_bytes=opened.encoder_bytes(backends.weights, precision),
            mmproj=None if opened.mmproj is None else str(opened.mmproj),
            is_encoder=opened.model.is_encoder,
            num_labels=opened.model.num_labels,
            head_pooling=opened.model.head_pooling,
            embedding_size=sizes.embedding_size,
            takes_maxima=opened.model.is_encoder or not sizes.projections,
            is_headless=is_headless(opened.architecture),
        )

        def make_runner(buffer: SequenceBuffer, table: ShapeTable) -> DeviceRunner:
            placement = devices.place(params)
            # Programs of several devices are found in JAX's own cache alone.
            folder = config.compilation_cache if config.tensor_parallel == 1 else None
            return group.make_runner(
                params, opened.model, backends, layout, buffer, table, config.decode_chunk,
                placement=placement, store=None if folder is None else Path(folder), copies_pages=config.keeps_pages,
                adapters=adapters,
            )  # fmt: skip

        engine = cls(config, layout, model_info, make_runner, progress)
        undo.callback(engine.close)
        engine.model_path = opened.path
        if files is not None:
            parts = page_parts(opened, config, backends, layout)
            engine._kv_offload = KVOffload(config, engine.pool, engine.runner.pages, files, parts)
            engine.scheduler.requests.prefixes.transfers = engine._kv_offload.transfers
            engine._kv_offload.transfers.wait_until_open(_MOST_OPENING_SECONDS)
        return engine

    def make_loop(
        self, publish: Callable[[Sequence[StepEvent]], None], on_failure: Callable[[BaseException], None]
    ) -> EngineLoop:
        """Makes the loop that runs this engine, one at a time; raises ValueError for the address of the page events."""
        if self._is_asleep:  # an earlier client left it asleep
            self.wake(None if self.has_weights else self.read_weights())
        try:
            self.runner.start()
            if self._kv_offload is not None:
                self._kv_offload.start()
            loop = EngineLoop(
                self.scheduler, self.runner, publish, on_failure, overlap=self.config.overlap, timeline=self.timeline,
                transfers=None if self._kv_offload is None else self._kv_offload.transfers, pictures=self.pictures,
            )  # fmt: skip
            if self.config.kv_events is not None:
                self._kv_events = KVEventPublisher(
                    KVEndpoint.parse(self.config.kv_events),
                    self.config.kv_events_topic,
                    self.pool,
                    self.scheduler.requests.page_size,
                    windows=self.scheduler.requests.pages.windows,
                    has_array_events=self.config.kv_events_format == "arrays",
                )
        except BaseException:
            self.close()  # the threads of pages would hold the weights for ever
            raise
        self._compile_counter.start(loop.thread)
        return loop

    def sleep(self, *, drop_weights: bool) -> None:
        """Queues all running requests again and frees the memory of the pages; nothing may be in flight."""
        self.scheduler.send_all_back()
        if self.pictures is not None:
            self.pictures.cache.clear()
        if self._kv_offload is not None:
            self._kv_offload.transfers.cancel_all()
        self._is_asleep = True
        self.runner.sleep(drop_weights=drop_weights)

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in memory, of the device or of the host."""
        return self.runner.arrays.has_weights

    def forget_weights(self) -> None:
        """Frees the memory of the weights of a sleeping engine; `wake` needs them anew."""
        self.runner.arrays.forget_weights()

    def wake(self, params: Params | None = None) -> None:
        """Undoes `sleep`, with `params` where the weights were forgotten. Where it fails, the engine stays asleep."""
        try:
            if params is not None:
                self._replace_params(params)
            self.runner.wake()
        except BaseException:
            if params is not None:
                self.runner.arrays.forget_weights()  # an engine with weights would count as awake
            raise
        self.pool.highest_page = NULL_PAGE_ID
        self._is_asleep = False

    def open_weights(self, path: Path | None = None) -> OpenModel:
        """Finds weights, by default those of the engine's own model, which `read_weights` reads; raises ModelError."""
        path = path or self.model_path
        if path is None:
            raise ModelError("the engine was not loaded from a file, so that its weights cannot be read again")
        # The encoder is the one that was found at the start, whatever lies beside the files now.
        mmproj = self.model_info.mmproj
        opened = open_model(
            path,
            language_model_only=self.runner.model.encoder is None,
            mmproj=None if mmproj is None else Path(mmproj),
        )
        opened = opened.laid_out_for(self.config.max_model_len).for_context(self.model_info.max_model_len)
        if opened.model != self.runner.model:
            raise ModelError(f"{path} is of another shape: {opened.config} in the place of {self.runner.model.config}")
        return opened

    def read_weights(self, path: Path | None = None) -> Params:
        """Reads the weights that `open_weights` finds, in any thread; raises ModelError if they don't fit."""
        path = path or self.model_path
        files = None if self._kv_offload is None or path is None else files_of(path)  # as they are before they are read
        opened = self.open_weights(path)
        precision = Precision.of_engine(self.config)
        params = opened.load(self.runner.backends.weights, precision, lambda stage, done, total: None).params
        if self.adapters is not None:
            params = self.adapters.attach(params)
        if not self.runner.arrays.accepts(params):
            raise ModelError(f"{opened.path} holds its weights in other formats than the model that is loaded")
        if self._kv_offload is not None and files is not None:
            self._kv_offload.files = files
        return params

    def replace_params(self, params: Params) -> None:
        """Replaces the weights and forgets all prefixes; raises EngineBusy while pages are in use."""
        if not self.pool.reset_prefix_cache():
            raise EngineBusy(f"{self.pool.num_active} pages are still being read or stored; try again")
        self._replace_params(params)
        self.runner.write_adapters()

    def _replace_params(self, params: Params) -> None:
        self.runner.arrays.params = params
        if self.pictures is not None:
            self.pictures.cache.clear()
        if self._kv_offload is not None:
            self._kv_offload.open_if_changed()

    @property
    def adapters(self) -> AdapterStacks | None:
        """None: no adapter can be used."""
        return self.runner.adapters

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Puts an adapter into a slot that no step in flight names; raises ValueError if the engine takes none."""
        self.runner.load_adapter(slot, weights)

    def reset_prefix_cache(self) -> bool:
        """Forgets every prefix, also those in the offload folder; refuses while any request holds a page."""
        if not self.pool.reset_prefix_cache():
            return False
        if self._kv_offload is not None:
            self._kv_offload.transfers.clear()
        return True

    def stats(self) -> EngineStats:
        """Counters and gauges, read without a lock from any thread; two of them may be one step apart."""
        counters, pool = self.scheduler.counters, self.pool
        return EngineStats(
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            num_steps=counters.num_steps,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generation_tokens=counters.num_generation_tokens,
            num_preemptions=counters.num_preemptions,
            page_size=self.scheduler.requests.page_size,
            num_pages=pool.num_pages,
            num_page_groups=self.scheduler.requests.pages.num_groups,
            num_free_pages=pool.num_free,
            num_cached_pages=pool.num_cached,
            num_active_pages=pool.num_active,
            prefix_cache_queries=counters.prefix_cache_queries,
            prefix_cache_hits=counters.prefix_cache_hits,
            kept=KVOffloadStats()
            if self._kv_offload is None
            else self._kv_offload.figures(self.scheduler.requests.page_size),
            compiles_after_ready=self._compile_counter.count,
            device_busy_seconds=self.timeline.device_busy_seconds,
            device_idle_seconds=self.timeline.device_idle_seconds,
            device_idle_fraction=self.timeline.recent_idle_fraction,
            step_time_error=self.scheduler.step_time.step_time_error,
            prompt_share=self.scheduler.step_time.prompt_share,
            num_step_tokens=self.timeline.num_step_tokens,
            step_token_counts=tuple(self.timeline.step_token_counts),
            mm_cache_queries=0 if self.pictures is None else self.pictures.cache.num_queries,
            mm_cache_hits=0 if self.pictures is None else self.pictures.cache.num_hits,
            encoder_runs=0 if self.pictures is None else self.pictures.num_runs,
        )

    def watch_hosts(self, on_lost: Callable[[BaseException], None]) -> None:
        """Calls `on_lost`, from any thread, when another host is lost; raises EngineError if they were released."""
        self._group.watch(on_lost)

    def follow(self, on_lost: Callable[[BaseException], None]) -> None:
        """Computes the steps of the leader of several hosts until it ends. Blocks.

        Any thread calls `on_lost` when the leader is lost, because this one may be waiting for a device.

        Raises HostLost: the leader is lost or has failed.
        """
        self._group.watch(on_lost)
        self._group.follow(self.runner)

    def refuse_over_hosts(self, what: str) -> None:
        """Raises EngineBusy if several hosts compute the model together."""
        if self.config.num_hosts > 1:
            raise EngineBusy(
                f"{what} is not possible while {self.config.num_hosts} hosts compute the model (num_hosts)"
            )

    def close(self, *, store_seconds: float = 0.0, failure: str = "") -> None:
        """Stops the compile counter and the threads beside the steps; `make_loop` starts them again.

        Pages that have left the engine are stored for `store_seconds` at most. Other hosts receive the `failure`.
        """
        self._group.close(failure)
        self._compile_counter.stop()
        self.runner.close()
        if self._kv_events is not None:
            self._kv_events.close()
        if self._kv_offload is not None:
            self._kv_offload.close(store_seconds)


def _jax_cache(config: EngineConfig, fingerprint: str) -> AbstractContextManager[None]:
    """A context in which JAX finds the programs of earlier starts and keeps what it compiles."""
    if config.compilation_cache is None:
        return nullcontext()
    return JaxCompilationCache(Path(config.compilation_cache)).opened(
        f"{fingerprint} {jax.__version__} {cpu_features()}"
    )


def _picture_encoding(runner: DeviceRunner, num_positions: int, info: ModelInfo) -> PictureEncoding:
    encoder = runner.model.encoder
    assert encoder is not None
    num_tokens = encoder.num_tokens
    cache = PictureCache(
        num_positions // num_tokens, num_tokens, info.vocab_size, sees_both_ways=encoder.sees_both_ways
    )
    return PictureEncoding(cache, runner.arrays, runner.programs.compiled, encoder, info.max_model_len)


def _shape_table(config: EngineConfig, model: ModelInfo) -> ShapeTable:
    if not model.is_encoder:
        return ShapeTable(config.max_num_seqs, config.batched_tokens() // TILE_SIZE)
    # A step has one text of any length, or as many short ones as `max_num_batched_tokens` allow, each with one tile
    # that is not full.
    grain = TILE_GRAIN if model.matmul_backend == "native" else TILE_SIZE
    num_tokens = config.batched_tokens(is_encoder=True)
    most_of_several = min(num_tokens // grain, num_tokens // TILE_SIZE + config.max_num_seqs)
    most = max(-(-model.max_model_len // TILE_SIZE), most_of_several)
    return ShapeTable(config.max_num_seqs, most, is_of_encoder=True)


def _kv_layout(
    model: ModelConfig, config: EngineConfig, backends: Backends, max_model_len: int, *, is_encoder: bool
) -> KVLayout:
    page_size = config.page_size or PAGE_SIZE_BY_BACKEND.get(jax.default_backend(), 16)

    def layout(num_pages: int, num_snapshots: int = 0) -> KVLayout:
        pages = model.kv_layout(num_pages, page_size, kv_dtype(config, backends))
        if groups is not None:
            num_places = (num_pages - 1) * groups.num_groups + 1
            return replace(pages, num_layers=groups.num_layers, num_pages=num_places, groups=groups)
        if not model.states:
            return pages
        return replace(pages, states=StateLayout(model.states, config.max_num_seqs, num_snapshots))

    # Texts of encoders are computed whole. A window that no step moves behind the first page gives nothing back.
    windows = () if is_encoder else model.page_windows
    groups = group_layers(windows, max_model_len - config.max_step_tokens)
    one = layout(1)
    # Devices other than CPUs have memory of their own, and each holds its share of a page; so does each host.
    num_shares = config.tensor_parallel if jax.default_backend() != "cpu" else config.num_hosts
    bytes_per_page = one.bytes_per_page * one.num_groups // num_shares
    interval = _interval(one)
    has_snapshots = bool(model.states) and config.enable_prefix_caching
    if config.num_pages is not None:
        check_num_pages(config.num_pages, bytes_per_page)
        return layout(config.num_pages, num_snapshots_for(config.num_pages, interval) if has_snapshots else 0)
    num_useful = config.max_num_seqs * -(-max_model_len // page_size) + 1
    if model.states:
        budget = cache_budget(memory_utilization=config.memory_utilization, kv_cache_bytes=config.kv_cache_bytes)
        num_pages, num_snapshots = pages_beside_states(
            budget, one.bytes_per_page, num_useful,
            state_bytes=one.states.bytes_per_entry, num_slots=config.max_num_seqs, interval=interval,
        )  # fmt: skip
        return layout(num_pages, num_snapshots if has_snapshots else 0)
    num_pages = pages_that_fit(
        bytes_per_page,
        num_useful,
        memory_utilization=config.memory_utilization,
        kv_cache_bytes=config.kv_cache_bytes,
    )
    return layout(num_pages)


def _interval(layout: KVLayout) -> int:
    """Pages between two snapshots of states."""
    return snapshot_interval(layout.states.bytes_per_entry, layout.bytes_per_page, layout.page_size, TILE_SIZE)
