"""The settings of `eagre serve`: flags, then environment variables, then a file, then defaults."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from ipaddress import ip_network
from typing import Any

import orjson

from engine.interface.config import EngineConfig
from engine.interface.setting import NOT_EMPTY, Limit, Setting, at_least, check, from_to, setting, settings_of
from engine.interface.types import Pooling
from server.model_sources.cache_folder import cache_folder
from server.output_parsers.reasoning_parser import OFF, REASONING_SYNTAXES
from server.output_parsers.tool_call_syntaxes import NATIVE, TOOL_CALL_SYNTAXES
from server.startup.config_file import ConfigError, ConfigFile, read_config
from server.startup.flag_groups import FIRST_FLAGS, FLAG_GROUPS
from server.startup.flags import add_flag, as_given, is_given, read
from server.startup.model_table import ModelTable
from server.startup.model_task import Task
from server.structured_output.grammar_limits import DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT, LARGEST_MAX_BYTES

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("console", "json")
TOOL_CALL_PARSERS = (NATIVE, *(syntax.name for syntax in TOOL_CALL_SYNTAXES))
REASONING_PARSERS = (*(syntax.name for syntax in REASONING_SYNTAXES), OFF)
TASKS = tuple(Task)
MAX_SECONDS = 86_400  # of every interval and timeout
MAX_REPLICAS = 64  # of one machine
LARGEST_LORA_RANK = 512
DEFAULT_MODEL = "smollm2-135m-instruct"

OPENAI_DEFAULTS = "openai"

_SECONDS = Limit(lambda seconds: 0 < seconds <= MAX_SECONDS, f"it must be above 0, at most {MAX_SECONDS}")


# They become part of the page's Content-Security-Policy, which has no literal IPv6 addresses.
_ORIGINS = Limit(
    lambda origins: all(re.fullmatch(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?", origin) for origin in origins),
    "each must be an origin such as http://127.0.0.1:8001",
)

_HOSTS = Limit(lambda text: all(host.strip() for host in text.split(",")), "it must not be empty")

_NETWORKS = Limit(
    lambda networks: all(_is_network(network) for network in networks),
    "each must be an address or a network such as 10.0.0.0/8",
)

_FRONT_KEY = Limit(
    lambda key: re.fullmatch(r"[!-~]{16,}", key) is not None, "it must have at least 16 visible ASCII characters"
)


class MetricsNames(StrEnum):
    """Whose names the metrics have; the values are those of the setting."""

    EAGRE = "eagre"
    VLLM = "vllm"
    BOTH = "both"
    LLAMA_CPP = "llamacpp"  # beside Eagre's, because its figures are of all models together


class Api(StrEnum):
    """An API of which a server has the routes; the values are those of the setting."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    LLAMA_CPP = "llama-cpp"


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and its limit."""


_APIS = Limit(
    lambda names: len(names) > 0 and all(name in tuple(Api) for name in names),
    f"each must be one of {', '.join(Api)}, and there must be one",
)

_PREFIX = Limit(
    lambda prefix: re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", prefix) is not None,
    "it must be a path such as /llm, without a slash at its end",
)


def _accepts(parse: Callable[[Any], Any], text: str) -> bool:
    """Whether a function takes what a text says in JSON."""
    try:
        parse(orjson.loads(text))
    except ValueError:
        return False
    return True


def _is_variables(text: str) -> bool:
    from server.protocol.generation_fields import parse_variables  # it brings pydantic, which most commands do without

    return _accepts(parse_variables, text)


def _is_switches(text: str) -> bool:
    from server.protocol.generation_fields import parse_switches  # likewise

    return _accepts(parse_switches, text)


_VARIABLES = Limit(_is_variables, 'it must be a JSON object such as {"enable_thinking": false}, without reserved names')
_SWITCHES = Limit(_is_switches, 'it must be a JSON object such as {"max_pixels": 1003520}')


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _listed(choices: tuple[str, ...]) -> Limit:
    return Limit(lambda value: value in choices, f"it must be one of {', '.join(choices)}", choices)


@dataclass(frozen=True)
class ServerSettings:
    """All settings, the engine's included: each is a flag (`--max-model-len`) and a variable (`EAGRE_MAX_MODEL_LEN`).

    Raises SettingsError if a value is of the wrong type or outside its limits.
    """

    host: str = setting("127.0.0.1", "address to listen on, or several, comma-separated", limit=_HOSTS)
    port: int = setting(8000, "port to listen on; 0 picks a free one", limit=from_to(0, 65535))
    uds: str | None = setting(
        None, "Unix socket to listen on instead, for its owner alone", limit=NOT_EMPTY, metavar="PATH"
    )
    api_prefix: str | None = setting(
        None, "path such as /llm under which all routes are too, for a server behind a proxy", limit=_PREFIX,
        metavar="PATH",
    )  # fmt: skip
    apis: tuple[str, ...] = setting(
        tuple(Api), "APIs whose routes exist, comma-separated; all by default", limit=_APIS, metavar="NAMES"
    )
    no_slots: bool = setting(False, "take away the route /slots, which tells how many requests run")
    no_playground: bool = setting(False, "take away the pages / and /docs, and their files")
    metrics_port: int | None = setting(
        None, "port of their own for metrics and health, which need no key there", limit=from_to(0, 65535)
    )
    metrics_names: str = setting(
        MetricsNames.EAGRE.value,
        "names of the metrics: eagre, vllm (for routers and dashboards made for it), both, or llamacpp (its figures "
        "beside Eagre's)",
        limit=_listed(tuple(MetricsNames)),
    )
    ssl_certfile: str | None = setting(
        None, "certificate chain in PEM format; with it the server speaks TLS", limit=NOT_EMPTY, metavar="PATH"
    )
    ssl_keyfile: str | None = setting(
        None, "the certificate's private key in PEM format, without a password", limit=NOT_EMPTY, metavar="PATH"
    )
    api_keys: tuple[str, ...] = setting(
        (), "keys of clients, comma-separated; other clients are refused", key="api_key", metavar="KEYS", is_secret=True
    )
    api_key_file: str | None = setting(
        None,
        "file with a key on each line, and its name, priority and limits if you like; SIGHUP reads it again",
        limit=NOT_EMPTY,
    )
    admin_keys: tuple[str, ...] = setting(
        (), "keys of operators, comma-separated; turns on the admin routes", key="admin_key", metavar="KEYS",
        is_secret=True,
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = setting(
        (), "names, comma-separated, besides localhost, that clients without a key may call the server by",
        metavar="NAMES",
    )  # fmt: skip
    inspect_requests: bool = setting(
        False, "keep the last requests of all clients, prompts and answers, for the administrator to look at"
    )
    inspect_bytes: int = setting(
        64 << 20, "most bytes of requests that are kept for that; the oldest go first", limit=at_least(1 << 16),
        metavar="BYTES",
    )  # fmt: skip
    config: str | None = setting(
        None, "TOML file with these settings, and a table for each model; SIGHUP reads it again", limit=NOT_EMPTY,
        metavar="PATH",
    )  # fmt: skip
    models: tuple[str, ...] = setting(
        (DEFAULT_MODEL,),
        "a built-in model, owner/name of one of the Hub, path of a GGUF file or a Hugging Face folder, or of a folder "
        "with several; give it again for further models; NAME=MODEL names it for clients",
        key="model",
        limit=NOT_EMPTY,
        metavar="MODEL",
    )
    task: str | None = setting(
        None,
        "what the model is for where its files do not say it: generate, embed, rerank or classify",
        limit=_listed(TASKS),
    )
    pooling: str | None = setting(
        None,
        "how the tokens of a text become its embedding where a request does not say it: cls, last, mean, "
        "mean_sqrt_len, weightedmean or max; none: each has its own, by /embedding; the model's own way by default",
        limit=_listed(tuple(Pooling)),
    )
    served_model_name: str | None = setting(
        None, "name for clients of the only model; its own if not given", limit=NOT_EMPTY, metavar="NAME"
    )
    lora: tuple[str, ...] = setting(
        (),
        "NAME=PATH of a low-rank adapter (a folder in PEFT's layout or a GGUF file), which clients choose as the model "
        "NAME, or the path of a folder with several; give it again for further ones",
        limit=Limit(all, "no part of it may be empty"),
        metavar="ADAPTER",
    )
    enable_lora: bool = setting(False, "take adapters at run time, by /v1/load_lora_adapter")
    max_loras: int | None = setting(
        None,
        "adapters in memory at once, of which the one used the longest ago makes room; if not given, those of --lora, "
        "and with --enable-lora at least 4",
        limit=from_to(1, 256),
        metavar="N",
    )
    max_lora_rank: int | None = setting(
        None,
        "largest rank of an adapter; if not given, that of --lora, and with --enable-lora at least 16",
        limit=from_to(1, LARGEST_LORA_RANK),
        metavar="RANK",
    )
    models_max: int | None = setting(
        None,
        "models in memory at once, of which the one that is used the least makes room; all if not given",
        limit=at_least(1),
        metavar="N",
    )
    models_max_bytes: int | None = setting(
        None,
        "most bytes of the weights and caches of models in memory at once; what the machine has if not given",
        limit=at_least(1),
        metavar="BYTES",
    )
    chat_template: str | None = setting(
        None, "file with a jinja2 template in the place of the model's own", limit=NOT_EMPTY, metavar="PATH"
    )
    default_chat_template_kwargs: str | None = setting(
        None, "JSON object of variables for the chat template, where a request does not give them", limit=_VARIABLES,
        metavar="JSON",
    )  # fmt: skip
    mm_processor_kwargs: str | None = setting(
        None, "JSON object of settings of the image processor, where a request does not give them", limit=_SWITCHES,
        metavar="JSON",
    )  # fmt: skip
    data_parallel: int = setting(
        1, "servers in processes of their own behind one front, each with its share of cores and memory",
        limit=from_to(1, MAX_REPLICAS), metavar="N",
    )  # fmt: skip
    front_key: str | None = setting(
        None, "secret of the fronts of this server, which may move resumable streams between servers",
        limit=_FRONT_KEY, metavar="KEY", is_secret=True,
    )  # fmt: skip
    replica_name: str | None = setting(
        None, "name of this server among others, in its logs", limit=NOT_EMPTY, metavar="NAME"
    )
    engine: EngineConfig = EngineConfig()  # its settings come here in the help
    max_body_bytes: int = setting(
        4 << 20, "largest request body and WebSocket frame", limit=at_least(1024), metavar="BYTES"
    )
    body_timeout: float = setting(
        30.0, "time in which a request's body must have arrived", limit=_SECONDS, metavar="SECONDS"
    )
    max_preparing_bytes: int = setting(
        64 << 20,
        "most bytes of request bodies that are read, checked and tokenised at the same time",
        limit=at_least(1024),
        metavar="BYTES",
    )
    max_preparing_requests: int = setting(
        1024, "most requests that are checked and tokenised at the same time", limit=at_least(1)
    )
    max_connections: int = setting(4096, "most open connections", limit=at_least(1))
    trusted_proxies: tuple[str, ...] = setting(
        (), "networks, comma-separated, of proxies whose X-Forwarded-For or Forwarded names the client; their own "
        "addresses have no share of connections",
        limit=_NETWORKS, metavar="NETWORKS",
    )  # fmt: skip
    max_websockets: int = setting(256, "most open WebSockets", limit=at_least(1))
    keep_alive_timeout: float = setting(
        60.0,
        "time in which a connection must have sent a request's header, after it was opened and after each answer",
        limit=_SECONDS,
        metavar="SECONDS",
    )
    max_grammar_bytes: int = setting(
        DEFAULT_MAX_BYTES, "largest JSON schema, regex or grammar", limit=from_to(1, LARGEST_MAX_BYTES), metavar="BYTES"
    )
    grammar_timeout: float = setting(
        DEFAULT_TIMEOUT, "processor time such a grammar may take to compile", limit=_SECONDS, metavar="SECONDS"
    )
    shutdown_timeout: float = setting(
        20.0, "time running streams have to end after SIGTERM", limit=from_to(0, MAX_SECONDS), metavar="SECONDS"
    )
    ping_interval: float = setting(15.0, "longest silence on an open stream", limit=_SECONDS, metavar="SECONDS")
    write_timeout: float = setting(
        30.0, "time after which a stalled client is cut off", limit=_SECONDS, metavar="SECONDS"
    )
    resume_grace: float = setting(
        120.0, "time for which a resumable stream goes on without its client, and is kept after its end",
        limit=_SECONDS, metavar="SECONDS",
    )  # fmt: skip
    resume_max_bytes: int = setting(
        64 << 20, "most bytes of resumable streams that are kept", limit=at_least(1 << 16), metavar="BYTES"
    )
    resume_max_streams: int = setting(1024, "most resumable streams that are kept", limit=at_least(1))
    tool_call_parser: str | None = setting(
        None, f"the one syntax of tool calls that is parsed: {NATIVE} for that of the model's template, or a name as "
        "hermes, mistral or llama3_json; if not given, that of the template and calls in plain JSON",
        limit=_listed(TOOL_CALL_PARSERS), metavar="NAME",
    )  # fmt: skip
    additional_properties: str = setting(
        "closed", "closed or open: whether objects may have properties that their schema does not describe, where it "
        "says nothing of them",
        limit=_listed(("closed", "open")), metavar="RULE",
    )  # fmt: skip
    reasoning_parser: str | None = setting(
        None, f"{', '.join(REASONING_PARSERS[:-1])} or {OFF}: how the model marks its reasoning; if not given, its "
        "template tells",
        limit=_listed(REASONING_PARSERS), metavar="NAME",
    )  # fmt: skip
    strict_parameters: bool = setting(
        False, "refuse every parameter that this server does not know, in the place of ignoring it"
    )
    allowed_media_hosts: tuple[str, ...] = setting(
        (), "hosts, comma-separated, from which pictures that a request names by their address are downloaded",
        metavar="HOSTS",
    )  # fmt: skip
    allowed_media_path: str | None = setting(
        None, "folder of which requests may name pictures by file: addresses", limit=NOT_EMPTY, metavar="PATH"
    )
    ignore_media: bool = setting(
        False, "put a note in the place of a picture that the model cannot see, in the place of an error"
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "web origins, comma-separated, whose pages may use the server; localhost for those of this machine at any "
        "port, * for all",
        metavar="ORIGINS",
    )
    playground_peers: tuple[str, ...] = setting(
        (), "origins of other servers, comma-separated, that the page may ask too; each must allow this one's origin",
        limit=_ORIGINS, metavar="ORIGINS",
    )  # fmt: skip
    mcp_config: str | None = setting(
        None, "file with the MCP servers (mcpServers, as in editors) whose tools conversations on the page may use",
        limit=NOT_EMPTY, metavar="PATH",
    )  # fmt: skip
    store: str | None = setting(
        None, "SQLite file for what clients ask to be stored; in memory if not given", limit=NOT_EMPTY, metavar="PATH"
    )
    store_bytes: int = setting(
        128 << 20, "most bytes that are stored; the least recently used go first", limit=at_least(1 << 20),
        metavar="BYTES",
    )  # fmt: skip
    store_records: int = setting(
        10_000, "most responses, conversations and the like that are stored", limit=at_least(1)
    )
    store_file_bytes: int = setting(
        256 << 20, "most bytes of the files of batches that are stored; beyond them uploads are refused",
        limit=at_least(1 << 16), metavar="BYTES",
    )  # fmt: skip
    max_file_bytes: int = setting(
        100 << 20, "largest file that a client may upload for a batch", limit=at_least(1024), metavar="BYTES"
    )
    max_batch_requests: int = setting(
        16, "requests of batches that are computed at once while nothing else is", limit=at_least(1), metavar="N"
    )
    sleep_idle_seconds: float | None = setting(
        None, "quiet time after which memory is given back until the next request", limit=_SECONDS
    )
    sampling_defaults: str = setting(
        "model",
        "where a request names no sampling: model (what its makers recommend) or openai (temperature 1, nothing cut)",
        limit=_listed(("model", OPENAI_DEFAULTS)),
    )
    log_level: str = setting("info", "debug, info, warning or error", limit=_listed(LOG_LEVELS))
    log_format: str = setting("console", "console or json", limit=_listed(LOG_FORMATS))
    tables: tuple[ModelTable, ...] = ()  # of the models in the file of `config`; of one model, its own

    def __post_init__(self) -> None:
        try:
            check(self)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise SettingsError("ssl_certfile and ssl_keyfile go together; one of them is missing")
        if self.inspect_requests and not self.admin_keys:
            raise SettingsError("inspect_requests shows requests to the administrator alone; admin_key is missing")
        self.engine_config()

    @property
    def takes_adapters(self) -> bool:
        """Whether adapters are given, or may come at run time."""
        return bool(self.lora) or self.enable_lora

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to listen on, each once."""
        return tuple(dict.fromkeys(host.strip() for host in self.host.split(",")))

    @property
    def model(self) -> str:
        """The only model of these settings, or the first."""
        return self.models[0]

    def engine_config(self, eos_token_ids: tuple[int, ...] = ()) -> EngineConfig:
        """The engine's settings, with the model's end tokens and the cache folder of programs; raises SettingsError."""
        try:
            folder = str(cache_folder() / "compiled")
            return replace(self.engine, compilation_cache=folder, eos_token_ids=eos_token_ids)
        except (ValueError, RuntimeError) as error:  # RuntimeError: the folder is in a home that is not known
            raise SettingsError(str(error)) from error

    @classmethod
    def declared(cls) -> list[Setting]:
        """All settings in the order of the help, including the engine's."""
        own = settings_of(cls)
        found: list[Setting] = []
        for item in fields(cls):
            if item.name == "engine":
                found += settings_of(EngineConfig).values()
            elif item.name in own:
                found.append(own[item.name])
        return found

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser, *, shows_all: bool = True) -> None:
        """Adds one flag for each setting, in groups; the help shows all, or those that matter first.

        A flag that is not given is None in the namespace.
        """
        declared = {setting.key: setting for setting in cls.declared()}
        for title, keys in FLAG_GROUPS.items():
            group = parser.add_argument_group(title)
            for key in keys:
                add_flag(group, declared[key], is_shown=shows_all or key in FIRST_FLAGS)

    @classmethod
    def from_sources(cls, flags: Mapping[str, Any], environment: Mapping[str, str]) -> ServerSettings:
        """The first of flag, environment variable, file and default that is given; raises SettingsError.

        `flags` are by the settings' keys, as texts that are parsed; other names are ignored.
        """
        file = ConfigFile()
        try:
            own = settings_of(cls)
            (path,) = read([own["config"]], flags, environment).values() or (None,)
            if path is not None:
                file = read_config(path, cls.declared())
            engine = EngineConfig(**read(settings_of(EngineConfig).values(), flags, environment, file.values))
            values = read(own.values(), flags, environment, file.values)
            if file.tables and "models" not in values:
                tables = tuple(_without_given(table, flags, environment) for table in file.tables)
                values |= {"tables": tables, "models": tuple(table.model for table in tables)}
            return cls(engine=engine, **values)
        except ConfigError as error:
            raise SettingsError(str(error)) from error
        except ValueError as error:
            raise SettingsError(as_given(str(error), cls.declared(), flags, environment, file)) from error


def _without_given(table: ModelTable, flags: Mapping[str, Any], environment: Mapping[str, str]) -> ModelTable:
    """The table without the settings that a flag or a variable gives, for all models."""
    declared = {setting.key: setting for setting in ServerSettings.declared()}
    given = {key for key in table.settings if is_given(declared[key], flags, environment)}
    return replace(table, settings={key: value for key, value in table.settings.items() if key not in given})
