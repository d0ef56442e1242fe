"""An engine put together: weights, pages, programs, scheduler and loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from cache.pool import PagePool
from cache.storage import PAGE_SIZE_BY_BACKEND, KVLayout, pages_that_fit
from engine.attention import pages_per_block
from engine.compiled import CompileCounter, use_persistent_cache
from engine.config import EngineConfig, ModelInfo
from engine.loop import EngineLoop
from engine.models.llama import LlamaParams
from engine.runner import DeviceRunner
from engine.scheduler import Scheduler
from engine.sequence_buffer import SequenceBuffer
from engine.shapes import TILE_SIZE, ShapeTable
from engine.step_event import StepEvent
from engine.timeline import Timeline
from engine.types import EngineStats, Progress
from engine.weights import GGUFModel


class Engine:
    """Everything of one model that is not asyncio."""

    def __init__(self, path: Path, config: EngineConfig, progress: Progress) -> None:
        """Reads the weights, allocates the pages and compiles every shape; takes seconds.

        Raises:
            WeightsError: the file cannot be served.
            ValueError: the configuration does not fit the model or the machine.
        """
        if config.compilation_cache is not None:
            use_persistent_cache(Path(config.compilation_cache))
        self.config = config
        self._is_asleep = False
        self._compile_counter = CompileCounter()
        model = GGUFModel(path)
        params = model.load(config.dtype, progress)

        self.model_config = model.config
        max_model_len = min(config.max_model_len or model.config.context_length, model.config.context_length)
        layout = _kv_layout(model, config, max_model_len)
        # A request that cannot ever fit into the pages is refused at the edge, as one too long for the model.
        page_size = layout.page_size
        self.max_model_len = min(max_model_len, (layout.num_pages - 1) * page_size)
        self.model_info = ModelInfo(
            architecture=model.architecture,
            vocab_size=model.config.vocab_size,
            max_model_len=self.max_model_len,
            dtype=config.dtype,
            num_parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
        )
        self.pool = PagePool(layout.num_pages)
        block = pages_per_block(page_size)
        pages_per_request = -(-self.max_model_len // (page_size * block)) * block
        buffer = SequenceBuffer(config.max_num_seqs, self.max_model_len, pages_per_request)
        self.scheduler = Scheduler(
            self.pool,
            buffer,
            page_size=page_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
            chunk_alignment=TILE_SIZE,
            vocab_size=model.config.vocab_size,
            eos_token_ids=frozenset(config.eos_token_ids),
            enable_prefix_caching=config.enable_prefix_caching,
            decode_chunk=config.decode_chunk,
        )
        table = ShapeTable(config.max_num_seqs, config.max_num_batched_tokens // TILE_SIZE)
        self.timeline = Timeline()
        self.runner = DeviceRunner(params, model.config, layout, buffer, table, config.decode_chunk)
        self.runner.compile(progress)
        # What is alive now stays so: a full collection over it would stop both threads for tens of milliseconds.
        gc.collect()
        gc.freeze()

    def make_loop(
        self, publish: Callable[[Sequence[StepEvent]], None], on_failure: Callable[[BaseException], None]
    ) -> EngineLoop:
        """The loop that drives this engine; there is one at a time. From now on a compile is a defect."""
        if self._is_asleep:  # an earlier client has left it so
            self.wake()
        self._compile_counter.start()
        return EngineLoop(
            self.scheduler, self.runner, publish, on_failure, overlap=self.config.overlap, timeline=self.timeline
        )

    def sleep(self, *, drop_weights: bool) -> None:
        """Sends running requests back to the queue and gives memory back; nothing may be in flight."""
        self.scheduler.send_all_back()
        self._is_asleep = True
        self.runner.sleep(drop_weights=drop_weights)

    def wake(self) -> None:
        """Undoes `sleep`."""
        self.runner.wake()
        self._is_asleep = False

    def replace_params(self, params: LlamaParams) -> None:
        """Takes other weights; what was computed with the old ones is forgotten. No request may hold a page.

        Raises:
            RuntimeError: requests hold pages.
        """
        if not self.pool.reset_prefix_cache():
            raise RuntimeError(f"{self.pool.num_active} pages are in use")
        self.runner.replace_params(params)

    def stats(self) -> EngineStats:
        """Read from any thread, without a lock: each figure is whole, together they may be a step apart."""
        counters, pool = self.scheduler.counters, self.pool
        return EngineStats(
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            num_steps=counters.num_steps,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generation_tokens=counters.num_generation_tokens,
            num_preemptions=counters.num_preemptions,
            num_pages=pool.num_pages,
            num_free_pages=pool.num_free,
            num_cached_pages=pool.num_cached,
            num_active_pages=pool.num_active,
            prefix_cache_queries=counters.prefix_cache_queries,
            prefix_cache_hits=counters.prefix_cache_hits,
            compiles_after_ready=self._compile_counter.count,
            device_busy_seconds=self.timeline.device_busy_seconds,
            device_idle_seconds=self.timeline.device_idle_seconds,
            device_idle_fraction=self.timeline.recent_idle_fraction,
        )

    def close(self) -> None:
        """Lets go of what outlives the thread."""
        self._compile_counter.stop()


def _kv_layout(model: GGUFModel, config: EngineConfig, max_model_len: int) -> KVLayout:
    page_size = config.page_size or PAGE_SIZE_BY_BACKEND.get(jax.default_backend(), 16)

    def layout(num_pages: int) -> KVLayout:
        return KVLayout(
            num_layers=model.config.num_layers,
            num_pages=num_pages,
            page_size=page_size,
            num_kv_heads=model.config.num_kv_heads,
            head_dim=model.config.head_dim,
            dtype=config.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        )

    if config.num_pages is not None:
        return layout(config.num_pages)
    num_useful = config.max_num_seqs * -(-max_model_len // page_size) + 1
    num_pages = pages_that_fit(
        layout(1).bytes_per_page,
        num_useful,
        memory_utilization=config.memory_utilization,
        kv_cache_bytes=config.kv_cache_bytes,
    )
    return layout(num_pages)
