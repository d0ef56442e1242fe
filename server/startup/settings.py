"""What the user of `eagre serve` decides: flags, then environment variables, then defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from engine.border.config import EngineConfig
from server.grammar.limits import DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT, LARGEST_MAX_BYTES
from server.startup.logs import LOG_FORMATS, LOG_LEVELS
from server.startup.model_store import cache_folder

ENVIRONMENT_PREFIX = "EAGRE_"
MAX_SECONDS = 86_400  # of every interval and timeout
DEFAULT_MODEL = "smollm2-135m-instruct"


class SettingsError(ValueError):
    """A setting that cannot be used; the sentence names it, its value and its limit."""


def _switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_TYPE_NAMES: Mapping[Callable[[str], Any], str] = {
    int: "an integer",
    float: "a number",
    _switch: "true or false",
}


def _setting(default: Any, parse: Callable[[str], Any], shown: str, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"parse": parse, "help": shown, "metavar": metavar})


@dataclass(frozen=True)
class ServerSettings:
    """Every field is a flag (`--max-model-len`) and a variable (`EAGRE_MAX_MODEL_LEN`).

    Raises:
        SettingsError: a value is outside its limits.
    """

    host: str = _setting("127.0.0.1", str, "address to listen on")
    port: int = _setting(8000, int, "port to listen on; 0 picks a free one")
    model: str = _setting(DEFAULT_MODEL, str, "a built-in model, or path of a GGUF file or a Hugging Face folder")
    served_model_name: str | None = _setting(None, str, "name for clients; the model's own if not given", "NAME")
    dtype: str = _setting(
        EngineConfig.dtype, str, "auto (quantised weights as the file has them), float32 (exact) or bfloat16"
    )
    quantize: str | None = _setting(None, str, "int8 or int4: rounds weights that the model holds as floats", "BITS")
    matmul_backend: str = _setting(EngineConfig.matmul_backend, str, "what computes products: auto, native or xla")
    attention_backend: str = _setting(EngineConfig.attention_backend, str, "and attention: auto, native or xla")
    max_model_len: int | None = _setting(None, int, "tokens, prompt and output together", "TOKENS")
    max_num_seqs: int = _setting(EngineConfig.max_num_seqs, int, "requests that run at once", "N")
    max_num_batched_tokens: int = _setting(
        EngineConfig.max_num_batched_tokens, int, "tokens that one step computes at most", "TOKENS"
    )
    page_size: int | None = _setting(None, int, "tokens of a cache page; what suits the device if not given", "TOKENS")
    num_pages: int | None = _setting(None, int, "cache pages; from --memory-utilization if not given", "N")
    memory_utilization: float = _setting(
        EngineConfig.memory_utilization, float, "share of the machine's memory for the cache", "SHARE"
    )
    kv_cache_bytes: int | None = _setting(None, int, "bytes for the cache, instead of a share", "BYTES")
    kv_cache_dtype: str = _setting(
        EngineConfig.kv_cache_dtype,
        str,
        "auto (as --dtype; beside auto what suits attention), float32, bfloat16 or int8",
    )
    no_prefix_caching: bool = _setting(False, _switch, "compute every prompt anew")
    synchronous: bool = _setting(False, _switch, "wait for each step before the next one is planned")
    seed: int | None = _setting(
        None, int, "seeds the requests that bring no seed of their own; else each start differs"
    )
    max_num_queued_requests: int = _setting(
        EngineConfig.max_num_queued_requests, int, "requests that may wait before 429", "N"
    )
    max_num_queued_tokens: int = _setting(
        EngineConfig.max_num_queued_tokens, int, "prompt tokens that may wait before 429", "TOKENS"
    )
    request_timeout: float | None = _setting(None, float, "time a request has from its arrival to its end", "SECONDS")
    queue_timeout: float | None = _setting(None, float, "time a request may wait before it runs", "SECONDS")
    max_body_bytes: int = _setting(4 << 20, int, "largest request body and WebSocket frame", "BYTES")
    max_grammar_bytes: int = _setting(DEFAULT_MAX_BYTES, int, "largest JSON schema, regex or grammar", "BYTES")
    grammar_timeout: float = _setting(DEFAULT_TIMEOUT, float, "time such a grammar may take to compile", "SECONDS")
    shutdown_timeout: float = _setting(30.0, float, "time running streams have to end after SIGTERM", "SECONDS")
    ping_interval: float = _setting(15.0, float, "longest silence on an open stream", "SECONDS")
    write_timeout: float = _setting(30.0, float, "time after which a stalled client is cut off", "SECONDS")
    allowed_origins: tuple[str, ...] = _setting(
        (), _names, "web origins, comma-separated, whose pages may open WebSockets", "ORIGINS"
    )
    log_level: str = _setting("info", str, "debug, info, warning or error")
    log_format: str = _setting("console", str, "console or json")

    def __post_init__(self) -> None:
        self._require(0 <= self.port <= 65535, "port", "it must be from 0 to 65535")
        self._require(bool(self.host), "host", "it must not be empty")
        self._require(bool(self.model), "model", "it must not be empty")
        self._require(self.served_model_name != "", "served_model_name", "it must not be empty")
        self._require(self.max_body_bytes >= 1024, "max_body_bytes", "it must be at least 1024")
        self._require(
            1 <= self.max_grammar_bytes <= LARGEST_MAX_BYTES,
            "max_grammar_bytes",
            f"it must be from 1 to {LARGEST_MAX_BYTES}",
        )
        self._require(
            0 < self.grammar_timeout <= MAX_SECONDS, "grammar_timeout", f"it must be above 0, at most {MAX_SECONDS}"
        )
        self._require(
            0 <= self.shutdown_timeout <= MAX_SECONDS, "shutdown_timeout", f"it must be from 0 to {MAX_SECONDS}"
        )
        self._require(
            0 < self.ping_interval <= MAX_SECONDS, "ping_interval", f"it must be above 0, at most {MAX_SECONDS}"
        )
        self._require(
            0 < self.write_timeout <= MAX_SECONDS, "write_timeout", f"it must be above 0, at most {MAX_SECONDS}"
        )
        self._require(self.log_level in LOG_LEVELS, "log_level", f"it must be one of {', '.join(LOG_LEVELS)}")
        self._require(self.log_format in LOG_FORMATS, "log_format", f"it must be one of {', '.join(LOG_FORMATS)}")
        self.engine_config()

    def engine_config(self, eos_token_ids: tuple[int, ...] = ()) -> EngineConfig:
        """The engine's part of the settings.

        Raises:
            SettingsError: the engine does not accept them.
        """
        try:
            return EngineConfig(
                dtype=self.dtype,
                quantize=self.quantize,
                matmul_backend=self.matmul_backend,
                attention_backend=self.attention_backend,
                max_model_len=self.max_model_len,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                page_size=self.page_size,
                num_pages=self.num_pages,
                memory_utilization=self.memory_utilization,
                kv_cache_bytes=self.kv_cache_bytes,
                kv_cache_dtype=self.kv_cache_dtype,
                enable_prefix_caching=not self.no_prefix_caching,
                max_num_queued_requests=self.max_num_queued_requests,
                max_num_queued_tokens=self.max_num_queued_tokens,
                request_timeout=self.request_timeout,
                queue_timeout=self.queue_timeout,
                overlap=not self.synchronous,
                seed=self.seed,
                compilation_cache=str(cache_folder() / "compiled"),
                eos_token_ids=eos_token_ids,
            )
        except (ValueError, RuntimeError) as error:  # RuntimeError: the cache folder is in a home that is not known
            raise SettingsError(str(error)) from error

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser) -> None:
        """One flag per field; what is not given stays out of the namespace's way as None."""
        for setting in fields(cls):
            flag = "--" + setting.name.replace("_", "-")
            parse, shown = setting.metadata["parse"], setting.metadata["help"]
            if parse is _switch:
                parser.add_argument(flag, dest=setting.name, action="store_true", default=None, help=shown)
                continue
            if setting.default not in (None, ()):
                shown += f" (default {setting.default})"
            metavar = setting.metadata["metavar"] or setting.name.split("_")[-1].upper()
            parser.add_argument(flag, dest=setting.name, default=None, help=shown, metavar=metavar)

    @classmethod
    def from_sources(cls, flags: Mapping[str, Any], environment: Mapping[str, str]) -> ServerSettings:
        """The first of flag, environment variable and default that is given.

        Args:
            flags: by field name; None is not given, text is parsed.
        Raises:
            SettingsError: a value cannot be read or is outside its limits.
        """
        values: dict[str, Any] = {}
        for setting in fields(cls):
            source = "--" + setting.name.replace("_", "-")
            value = flags.get(setting.name)
            if value is None:
                source = ENVIRONMENT_PREFIX + setting.name.upper()
                value = environment.get(source)
            if isinstance(value, str):
                parse = setting.metadata["parse"]
                try:
                    value = parse(value)
                except ValueError:
                    raise SettingsError(f"{source} is {value!r}; it must be {_TYPE_NAMES[parse]}") from None
            if value is not None:
                values[setting.name] = value
        return cls(**values)

    def _require(self, holds: bool, name: str, demand: str) -> None:
        if not holds:
            raise SettingsError(f"{name} is {vars(self)[name]!r}; {demand}")
