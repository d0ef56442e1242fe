"""The engine's configuration: frozen once the engine is built."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

from engine.interface.address import ENDPOINT, HOST_ADDRESS
from engine.interface.setting import NOT_EMPTY, Limit, alternatives, at_least, check, one_of, setting
from engine.interface.types import PictureInput, Pooling
from sampling.host.params import MAX_EOS_TOKEN_IDS

MAX_STALL_TIMEOUT = 86400.0  # seconds
TILE_SIZE = 64  # tokens of a prompt that are computed as one tile; a prompt is padded to whole tiles
TILE_GRAIN = 16  # tokens that native products multiply together; pieces of prompts but the last have whole grains
STEP_TOKENS = 256  # of prompts in a step, where the configuration says nothing
ENCODER_STEP_TOKENS = 1024  # of texts, which nobody waits for token by token

# The backends of kernels by preference; the last serves every model on every device. engine/backends/backends.py checks
# at its import that its records have these names.
BACKEND_NAMES = ("native", "xla")

_BACKENDS = one_of("auto", *BACKEND_NAMES)
_BACKEND_NAMES = alternatives("auto", *BACKEND_NAMES)
MOST_PEERS = 16  # of one server
_PEERS_DEMAND = f"there may be {MOST_PEERS}, and each must be HOST:PORT"
KEY = Limit(
    lambda key: re.fullmatch(r"[!-~]{16,}", key) is not None, "it must have at least 16 visible ASCII characters"
)
_SECONDS = Limit(lambda seconds: seconds > 0, "it must be above 0 seconds")


class AdapterLimits(NamedTuple):
    """The memory for low-rank adapters."""

    num_slots: int  # adapters in memory at once
    max_rank: int
    is_required: bool = True  # whether a model that takes none is refused; else it is loaded without room for them


@dataclass(frozen=True)
class EngineConfig:
    """What the user decides about the engine; the defaults suit a laptop.

    Every `setting` is also a flag of `eagre serve`, an environment variable and a keyword of `LLM`. None means a value
    that the engine chooses or no limit. Raises ValueError where a value is wrong or contradicts another.
    """

    dtype: str = setting(
        "auto",
        "auto (weights as the file has them), float32 (exact) or bfloat16 (weights of auto, multiplied as bfloat16)",
        limit=one_of("auto", "float32", "bfloat16"),
    )
    quantize: str | None = setting(
        None,
        "int8 or int4: rounds weights that the model holds as floats",
        limit=one_of("int8", "int4"),
        metavar="BITS",
    )
    matmul_backend: str = setting("auto", f"what computes matrix products: {_BACKEND_NAMES}", limit=_BACKENDS)
    attention_backend: str = setting("auto", f"what computes attention: {_BACKEND_NAMES}", limit=_BACKENDS)
    tensor_parallel: int = setting(
        1,
        "devices that compute the model together, each with its share of the weights and of the cache",
        limit=at_least(1),
        metavar="N",
    )
    num_hosts: int = setting(
        1,
        "processes, on one machine or on several, that compute the model together, each with its share of the devices",
        limit=at_least(1),
        variable="JAX_NUM_PROCESSES",
    )
    host_index: int = setting(
        0,
        "which of them this is: 0 serves, the others only compute",
        limit=at_least(0),
        metavar="I",
        variable="JAX_PROCESS_ID",
    )
    coordinator: str | None = setting(
        None,
        "HOST:PORT of host 0 where the others find it; the next port is used too",
        limit=HOST_ADDRESS,
        metavar="ADDRESS",
        variable="JAX_COORDINATOR_ADDRESS",
    )
    coordinator_key: str | None = setting(
        None,
        "secret of all hosts of the model, without which none may join; host 0 makes one and shows it if not given",
        limit=KEY,
        metavar="KEY",
        is_secret=True,
    )
    coordinator_key_file: str | None = setting(
        None, "file whose first line is that secret, if --coordinator-key is not given", limit=NOT_EMPTY, metavar="PATH"
    )
    max_model_len: int | None = setting(
        None,
        "tokens, prompt and output together; the model's own limit if not given",
        limit=at_least(2),
        metavar="TOKENS",
    )
    language_model_only: bool = setting(False, "of models that see pictures, load only what reads text")
    mmproj: str | None = setting(
        None,
        "GGUF file of the encoder of pictures of a GGUF model; one beside the model if not given",
        limit=NOT_EMPTY,
        metavar="PATH",
    )
    max_num_seqs: int = setting(64, "requests that run at once", limit=at_least(1), metavar="N")
    max_num_batched_tokens: int | None = setting(
        None,
        f"tokens of prompts that one step computes at most; {STEP_TOKENS}, or {ENCODER_STEP_TOKENS} of an encoder of "
        "texts, if not given",
        limit=at_least(TILE_SIZE, "prompts are computed in tiles of that many tokens"),
        metavar="TOKENS",
    )
    target_gap: float = setting(
        50.0,
        "longest gap between two tokens of a stream that prompts beside it may cause, where the model allows it; "
        "0: none, for throughput",
        limit=Limit(lambda gap: 0.0 <= gap < float("inf"), "it must be 0 or a number of milliseconds"),
        metavar="MS",
    )
    page_size: int | None = setting(
        None, "tokens of a cache page; what suits the device if not given", limit=at_least(1), metavar="TOKENS"
    )
    num_pages: int | None = setting(
        None,
        "cache pages, each of all layers; from --memory-utilization if not given",
        limit=at_least(2, "page 0 is the null page"),
        metavar="N",
    )
    memory_utilization: float = setting(
        0.1,
        "share of the machine's memory for the cache",
        limit=Limit(lambda share: 0.0 < share <= 0.95, "it must be above 0 and at most 0.95"),
        metavar="SHARE",
    )
    kv_cache_bytes: int | None = setting(
        None, "bytes for the cache, instead of a share", limit=at_least(1), metavar="BYTES"
    )
    kv_cache_dtype: str = setting(
        "auto",
        "auto (as --dtype; beside auto what suits attention), float32, bfloat16, int16 or int8",
        limit=one_of("auto", "float32", "bfloat16", "int16", "int8"),
    )
    enable_prefix_caching: bool = setting(True, "compute every prompt anew", key="no_prefix_caching")
    prefix_cache_dir: str | None = setting(
        None, "folder that keeps cached prefixes over a restart", limit=NOT_EMPTY, metavar="DIR"
    )
    prefix_cache_bytes: int = setting(
        8 << 30, "bytes that --prefix-cache-dir may hold, of all models", limit=at_least(1 << 20)
    )
    prefix_cache_listen: str | None = setting(
        None,
        "HOST:PORT at which other servers may read the pages in --prefix-cache-dir",
        limit=HOST_ADDRESS,
        metavar="ADDRESS",
    )
    prefix_cache_peers: tuple[str, ...] = setting(
        (),
        "HOST:PORT of other servers, comma-separated, whose pages are read where --prefix-cache-dir lacks them",
        limit=Limit(lambda peers: len(peers) <= MOST_PEERS and all(map(HOST_ADDRESS.holds, peers)), _PEERS_DEMAND),
        metavar="ADDRESSES",
    )
    prefix_cache_key: str | None = setting(
        None, "secret of all servers that read each other's pages", limit=KEY, metavar="KEY", is_secret=True
    )
    # The synchronous loop is the oracle of the overlapped one.
    overlap: bool = setting(True, "wait for each step before the next one is planned", key="synchronous")
    decode_chunk: int = setting(
        1,
        "tokens that each request gets from one program while no prompt is computed; they arrive together",
        limit=at_least(1),
        metavar="TOKENS",
    )
    seed: int | None = setting(None, "seeds the requests that bring no seed of their own; else each start differs")
    max_num_queued_requests: int = setting(1024, "requests that may wait before 429", limit=at_least(1), metavar="N")
    max_num_queued_tokens: int = setting(
        1 << 20, "prompt tokens that may wait before 429", limit=at_least(1), metavar="TOKENS"
    )
    request_timeout: float | None = setting(
        None, "time a request has from its arrival to its end", limit=_SECONDS, metavar="SECONDS"
    )
    queue_timeout: float | None = setting(
        None, "time a request may wait before it runs", limit=_SECONDS, metavar="SECONDS"
    )
    stall_timeout: float = setting(
        120.0,
        "time that one step may take before the engine is taken for dead and the process ends",
        limit=Limit(
            lambda seconds: 0 < seconds <= MAX_STALL_TIMEOUT,
            f"it must be above 0 and at most {MAX_STALL_TIMEOUT:g} seconds",
        ),
        metavar="SECONDS",
    )
    kv_events: str | None = setting(
        None,
        "tcp://HOST:PORT at which routers are told over ZeroMQ which prefixes are cached; the next port replays "
        "(pip install 'eagre[kv-events]')",
        limit=ENDPOINT,
        metavar="ADDRESS",
    )
    kv_events_topic: str = setting("", "topic of these messages, by which subscribers choose them")
    kv_events_format: str = setting(
        "maps",
        "how an event is written: maps, or arrays as earlier versions of vLLM did",
        limit=one_of("maps", "arrays"),
    )
    # Not settings, because the model, the user's cache folder and the server's adapters decide them.
    compilation_cache: str | None = None  # folder of compiled programs; None: they are not kept
    adapters: AdapterLimits | None = None  # None: no adapter can be used
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        if self.quantize is not None and self.dtype != "auto":
            raise ValueError(f"quantize is {self.quantize} and dtype {self.dtype}; quantised weights need dtype auto")
        if self.tensor_parallel > 1 and self.prefix_cache_dir is not None:
            raise ValueError(
                f"tensor_parallel is {self.tensor_parallel} and prefix_cache_dir {self.prefix_cache_dir}; "
                "pages that are split over devices are not kept in a folder"
            )
        if self.prefix_cache_listen is not None or self.prefix_cache_peers:
            self._check_peers()
        self._check_hosts()
        if len(self.eos_token_ids) > MAX_EOS_TOKEN_IDS:
            raise ValueError(
                f"eos_token_ids has {len(self.eos_token_ids)} entries; at most {MAX_EOS_TOKEN_IDS} are allowed"
            )

    def _check_peers(self) -> None:
        """Checks that pages can pass between folders of servers that share a key."""
        given = "prefix_cache_peers" if self.prefix_cache_listen is None else "prefix_cache_listen"
        for needed in ("prefix_cache_dir", "prefix_cache_key"):
            if getattr(self, needed) is None:
                raise ValueError(f"{given} is {getattr(self, given)!r}, but {needed} is missing")

    def _check_hosts(self) -> None:
        if self.num_hosts > 1 and self.coordinator is None:
            raise ValueError(
                f"num_hosts is {self.num_hosts}, but coordinator is missing; it must be HOST:PORT of host 0"
            )
        if self.host_index >= self.num_hosts:
            raise ValueError(f"host_index is {self.host_index}; with num_hosts {self.num_hosts} it must be less")
        if self.host_index and not self.has_host_key:
            raise ValueError(
                f"host_index is {self.host_index}, but coordinator_key is missing; it must be that of host 0, which "
                "shows the one that it has made"
            )
        if self.tensor_parallel % self.num_hosts:
            raise ValueError(
                f"tensor_parallel is {self.tensor_parallel} and num_hosts {self.num_hosts}; "
                "each host must have the same number of devices"
            )

    def check_packages(self) -> None:
        """Raises ValueError where a setting needs a package that is not installed; the message says how to get it."""
        if self.kv_events is not None and find_spec("msgspec") is None:
            raise ValueError(
                f"kv_events is {self.kv_events!r}, and needs the package msgspec, which is not installed; "
                "pip install 'eagre[kv-events]' installs it"
            )

    @property
    def mmproj_path(self) -> Path | None:
        """The file of the encoder of pictures; None: one beside the model, if there is one."""
        return None if self.mmproj is None else Path(os.path.expanduser(self.mmproj))

    @property
    def has_host_key(self) -> bool:
        """Whether the secret of the hosts of one model is given."""
        return self.coordinator_key is not None or self.coordinator_key_file is not None

    @property
    def max_step_tokens(self) -> int:
        """Tokens of a request that one step computes at most."""
        return max(self.batched_tokens(), self.decode_chunk)

    def batched_tokens(self, *, is_encoder: bool = False) -> int:
        """Tokens of prompts, or of the texts of an encoder, that one step computes at most."""
        return self.max_num_batched_tokens or (ENCODER_STEP_TOKENS if is_encoder else STEP_TOKENS)

    @property
    def keeps_pages(self) -> bool:
        """Whether cached prefixes are kept in a folder."""
        return self.prefix_cache_dir is not None and self.enable_prefix_caching

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> Self:
        """The configuration with these fields, others at their defaults; raises TypeError for unknown fields."""
        names = [item.name for item in fields(cls)]
        for name in keywords:
            if name not in names:
                raise TypeError(f"the engine has no setting {name!r}; it has {', '.join(names)}")
        return cls(**keywords)


@dataclass(frozen=True)
class ModelInfo:
    """What the server may know of the loaded model."""

    architecture: str
    vocab_size: int
    max_model_len: int  # tokens, prompt and output together
    dtype: str
    num_parameters: int
    device: str  # cpu, gpu or tpu
    matmul_backend: str  # of BACKEND_NAMES
    attention_backend: str
    backend_detail: str  # which native kernels these are, or why there are none and how to get them
    quantization: str | None = None  # what its files say of their numbers, such as "Q4_K_M" or "awq int4 g128"
    is_encoder: bool = False  # it computes whole texts and generates none
    num_labels: int = 0  # of a model that scores or classifies texts; 0: its texts become embeddings
    head_pooling: Pooling = Pooling.CLS  # of a text that its head scores
    embedding_size: int = 0  # numbers of an embedding; 0: not known
    takes_maxima: bool = True  # whether texts may be pooled to the largest numbers of their tokens
    is_headless: bool = False  # a decoder without the matrix that makes logits: it generates nothing
    pictures: PictureInput | None = None  # None: it reads text alone
    weight_bytes: int = 0  # of memory, without those of adapters; 0: not known
    cache_bytes: int = 0  # of memory, for the pages and states of sequences
    encoder_bytes: int = 0  # of the weights, those of the encoder of pictures
    mmproj: str | None = None  # the file of that encoder, where it has one of its own
