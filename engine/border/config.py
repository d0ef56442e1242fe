"""The engine's configuration: frozen once the engine is built."""

from __future__ import annotations

from dataclasses import dataclass

from sampling.host.params import MAX_EOS_TOKEN_IDS

TILE_SIZE = 64  # tokens: wide enough that products run at full speed, narrow enough for short prompts
MAX_STALL_TIMEOUT = 86400.0  # seconds


@dataclass(frozen=True)
class EngineConfig:
    """What the user decides about the engine. Sensible for a laptop as it stands.

    Raises:
        ValueError: a value is outside its limits or contradicts another.
    """

    # Of weights and arithmetic: auto (weights as the file has them, floats as bfloat16, where native
    # kernels are; else float32), float32 (exact) or bfloat16.
    dtype: str = "auto"
    quantize: str | None = None  # int8 or int4: weights that the file holds as floats are rounded at load
    matmul_backend: str = "auto"  # native, xla, or auto: native where it can be had
    attention_backend: str = "auto"
    max_model_len: int | None = None  # prompt and output together; None: what the model was trained for
    max_num_seqs: int = 64  # requests that run at once; the number of slots
    max_num_batched_tokens: int = 256  # token budget of one step
    page_size: int | None = None  # tokens; None: what suits the backend
    num_pages: int | None = None  # the null page included; None: from kv_cache_bytes or memory_utilization
    kv_cache_bytes: int | None = None  # None: from memory_utilization
    memory_utilization: float = 0.1  # share of the machine's memory that the KV pages take
    kv_cache_dtype: str = "auto"  # auto (as dtype; if that is auto, what suits attention), float32, bfloat16 or int8
    enable_prefix_caching: bool = True
    max_num_queued_requests: int = 1024
    max_num_queued_tokens: int = 1 << 20
    request_timeout: float | None = None  # seconds from submit to the last token; None: unlimited
    queue_timeout: float | None = None  # seconds from submit until it first runs; None: unlimited
    stall_timeout: float = 120.0  # seconds that one step may stand before the engine is taken for dead
    decode_chunk: int = 1  # steps that one program does while all rows decode: throughput for coarser streams
    overlap: bool = True  # False: the synchronous loop, the oracle of the overlapped one
    seed: int | None = None  # seeds the seeds of requests that bring none; None: different at every start
    compilation_cache: str | None = None  # folder of compiled programs; None: they are not kept
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype!r}; it must be auto, float32 or bfloat16")
        if self.quantize not in (None, "int8", "int4"):
            raise ValueError(f"quantize is {self.quantize!r}; it must be int8 or int4")
        if self.quantize is not None and self.dtype != "auto":
            raise ValueError(f"quantize is {self.quantize} and dtype {self.dtype}; quantised weights need dtype auto")
        for name in ("matmul_backend", "attention_backend"):
            if getattr(self, name) not in ("auto", "native", "xla"):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be auto, native or xla")
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "page_size",
            "max_num_queued_requests",
            "max_num_queued_tokens",
            "decode_chunk",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        least = self.max_num_seqs + TILE_SIZE
        if self.max_num_batched_tokens < least:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least {least}, "
                f"max_num_seqs ({self.max_num_seqs}) and {TILE_SIZE} tokens of a prompt, or prompts would starve"
            )
        for name in ("request_timeout", "queue_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} is {seconds}; it must be above 0 seconds")
        if not 0 < self.stall_timeout <= MAX_STALL_TIMEOUT:
            raise ValueError(
                f"stall_timeout is {self.stall_timeout}; it must be above 0 and at most {MAX_STALL_TIMEOUT} seconds"
            )
        if self.kv_cache_dtype not in ("auto", "float32", "bfloat16", "int8"):
            raise ValueError(f"kv_cache_dtype is {self.kv_cache_dtype!r}; it must be auto, float32, bfloat16 or int8")
        if self.kv_cache_bytes is not None and self.kv_cache_bytes < 1:
            raise ValueError(f"kv_cache_bytes is {self.kv_cache_bytes}; it must be at least 1")
        if len(self.eos_token_ids) > MAX_EOS_TOKEN_IDS:
            raise ValueError(
                f"eos_token_ids has {len(self.eos_token_ids)} entries; at most {MAX_EOS_TOKEN_IDS} are allowed"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"max_model_len is {self.max_model_len}; it must be at least 2")
        if self.num_pages is not None and self.num_pages < 2:
            raise ValueError(f"num_pages is {self.num_pages}; it must be at least 2 (page 0 is the null page)")
        if not 0.0 < self.memory_utilization <= 0.95:
            raise ValueError(f"memory_utilization is {self.memory_utilization}; it must be above 0 and at most 0.95")


@dataclass(frozen=True)
class ModelInfo:
    """What the server may know of the loaded model."""

    architecture: str
    vocab_size: int
    max_model_len: int  # tokens, prompt and output together
    dtype: str
    num_parameters: int
    device: str  # cpu, gpu or tpu
    matmul_backend: str  # native or xla
    attention_backend: str
    backend_detail: str  # which native kernels these are, or why there are none and how to get them
