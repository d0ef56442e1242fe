"""The file of `--config`: TOML with a key for each flag, and a table for each model."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import orjson

from engine.interface.regular_file import open_regular
from engine.interface.setting import Setting
from sampling.host.params import InvalidParameter, SamplingParams
from server.startup.model_table import ModelTable, Preset, RequestDefaults

MAX_BYTES = 1 << 20
MAX_NAME_CHARS = 256
MAX_SHOWN_CHARS = 100  # of a wrong value, in an error
MAX_KEY_PARTS = 32  # between which a key has dots; tomllib takes time and memory by the square of their number

# Settings of the server that the table of a model may give for that model alone.
MODEL_SETTINGS = frozenset(
    {
        "task", "pooling", "dtype", "quantize", "max_model_len", "language_model_only", "mmproj", "chat_template",
        "sampling_defaults", "seed", "tool_call_parser", "reasoning_parser", "max_num_seqs", "kv_cache_bytes",
        "kv_cache_dtype", "num_pages", "target_gap", "max_num_batched_tokens", "matmul_backend", "attention_backend",
        "sleep_idle_seconds", "no_prefix_caching", "max_num_queued_requests", "max_num_queued_tokens",
        "request_timeout", "queue_timeout", "stall_timeout", "additional_properties", "ignore_media",
        "mm_processor_kwargs", "enable_lora", "max_loras", "max_lora_rank",
    }
)  # fmt: skip
# Fields of SamplingParams that a table may give a default; the others depend on the request.
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "xtc_probability", "xtc_threshold",
)  # fmt: skip
_OWN_KEYS = ("model", "aliases", "sampling", "chat_template_kwargs", "pinned", "lora")
_PRESET_KEYS = frozenset({"model", "aliases", "sampling", "chat_template_kwargs"})
_VARIABLES = "default_chat_template_kwargs"  # a setting of JSON, which may be a table here

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
# A quote behind a backslash begins no part: a text full of them would be read from each of them to its end.
_LONG_KEY = re.compile(rf"(?<![\w\\-])(?:{_PART}\.[ \t]*+){{{MAX_KEY_PARTS}}}")
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # names that TOML needs no quotes for


class ConfigError(ValueError):
    """The file cannot be used; the message names the file, the table and the key."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)  # by the settings' keys
    tables: tuple[ModelTable, ...] = ()


def read_config(path: str, declared: Iterable[Setting]) -> ConfigFile:
    """Reads and checks a file, of which each key is one of the `declared` settings; raises ConfigError."""
    return _Reader(path, {setting.key: setting for setting in declared}).read()


class _Reader:
    def __init__(self, path: str, declared: Mapping[str, Setting]) -> None:
        self._path = path
        self._declared = declared

    def read(self) -> ConfigFile:
        content = self._parse()
        tables = content.pop("models", None)
        if "config" in content:
            self._fail("there is the key config, and a file names no further one")
        values = self._values(content, self._declared, None)
        if tables is None:
            return ConfigFile(self._path, values)
        if "model" in values:
            self._fail("it has the key model and tables of models; give each model its table")
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            self._fail('models is no table of tables; a model is written [models.NAME], with a key model = "…"')
        return ConfigFile(self._path, values, self._tables(tables))

    def _parse(self) -> dict[str, Any]:
        try:
            with open_regular(Path(self._path).expanduser()) as file:
                text = file.read(MAX_BYTES + 1)
            if len(text) > MAX_BYTES:
                self._fail(f"it is larger than {MAX_BYTES} bytes, the limit of such a file")
            decoded = text.decode("utf-8")
            if _LONG_KEY.search(decoded) is not None:
                self._fail(f"it has a key of more than {MAX_KEY_PARTS} parts")
            return tomllib.loads(decoded)
        except ConfigError:
            raise
        except OSError as error:
            self._fail(f"it cannot be read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            self._fail(f"it is not UTF-8: {error}")
        except tomllib.TOMLDecodeError as error:
            self._fail(f"it is not TOML: {error}")
        except (RecursionError, RuntimeError, ValueError):  # RuntimeError: of a home that is not known
            self._fail("it cannot be read: it is nested too deeply, or has a number of too many digits")

    def _values(self, content: Mapping[str, Any], known: Iterable[str], table: str | None) -> dict[str, Any]:
        """The values of settings, by their keys."""
        return {key: self._value(key, value, table) for key, value in self._known(content, known, table).items()}

    def _known(self, content: Mapping[str, Any], known: Iterable[str], table: str | None) -> dict[str, Any]:
        """`content` by keys with underscores, each of which must be among `known`."""
        names, found = sorted(known), dict[str, Any]()
        for given, value in content.items():
            key = given.replace("-", "_")
            if key not in names:
                self._fail(f"there is no key {_short(given)}{_meant(key, names)}", table)
            if key in found:
                self._fail(f"{_shown(key)} is given twice, with - and with _", table)
            found[key] = value
        return found

    def _value(self, key: str, value: Any, table: str | None) -> Any:
        setting = self._declared[key]
        shown = "not what it should be" if setting.is_secret else _short(value)
        if key == _VARIABLES and isinstance(value, dict):
            value = self._as_json(key, value, table)
        if setting.kind is tuple:
            value = tuple(value) if isinstance(value, list) else value
            value = setting.parse(value) if isinstance(value, str) else value
        elif setting.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = _as_float(value)
        elif setting.kind is bool and isinstance(value, bool):
            value = setting.from_key(value)
        problem = "it must be a list of strings" if _is_wrong_list(setting, value) else setting.problem(value)
        if problem is not None:
            self._fail(f"{_shown(key)} is {shown}; {problem}", table)
        return value

    def _as_json(self, key: str, value: Any, table: str | None) -> str:
        try:
            return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME).decode()
        except TypeError:  # a time, or a number of more than 64 bits
            self._fail(f"{_shown(key)} is {_short(value)}; it must have values that JSON has", table)

    # ---------------------------------------------------------------- tables of models

    def _tables(self, content: Mapping[str, dict[str, Any]]) -> tuple[ModelTable, ...]:
        models, presets = dict[str, ModelTable](), dict[str, list[Preset]]()
        for name, given in content.items():
            where = _header(name)
            self._check_name(name, "the name", where)
            table = self._known(given, {*_OWN_KEYS, *MODEL_SETTINGS}, where)
            if "model" not in table:
                self._fail("the key model is missing: a built-in name, a path, or owner/name of the Hub", where)
            model, aliases = self._text(table, "model", where), self._aliases(table, where)
            defaults = self._defaults(table, name)
            if model in content and model != name:
                self._check_preset(table, where)
                presets.setdefault(model, []).append(Preset(name, aliases, defaults))
                continue
            pinned = table.get("pinned", False)
            if not isinstance(pinned, bool):
                self._fail(f"pinned is {_short(pinned)}; it must be true or false", where)
            own = {key: value for key, value in table.items() if key in MODEL_SETTINGS}
            settings = self._values(own, MODEL_SETTINGS, where)
            if "lora" in table:
                settings["lora"] = self._adapters(table["lora"], where)
            models[name] = ModelTable(name, model, aliases, defaults, pinned, settings)
        for model, others in presets.items():
            if model not in models:
                self._fail(f"model is {model!r}, which is another preset; name its model", _header(others[0].name))
        if not models:
            self._fail("the table models is empty")
        tables = tuple(replace(table, presets=tuple(presets.get(name, ()))) for name, table in models.items())
        self._check_unique(tables)
        return tables

    def _check_preset(self, table: Mapping[str, Any], where: str) -> None:
        for key in sorted(table.keys() - _PRESET_KEYS):
            self._fail(
                f"there is the key {_shown(key)}, which belongs to the table of the model {table['model']!r}; "
                "a preset of it has aliases, sampling and chat-template-kwargs of its own",
                where,
            )

    def _text(self, table: Mapping[str, Any], key: str, where: str) -> str:
        value = table[key]
        if not isinstance(value, str) or not value.strip():
            self._fail(f"{key} is {_short(value)}; it must be a string with a name or a path", where)
        return value

    def _aliases(self, table: Mapping[str, Any], where: str) -> tuple[str, ...]:
        aliases = table.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            self._fail(f"aliases is {_short(aliases)}; it must be a list of strings", where)
        for alias in aliases:
            self._check_name(alias, "an alias", where)
        return tuple(aliases)

    def _adapters(self, value: Any, where: str) -> tuple[str, ...]:
        """What `--lora` would say: of a table, NAME=PATH for each; of a list, each as it stands."""
        if isinstance(value, dict) and all(isinstance(path, str) and path.strip() for path in value.values()):
            for name in value:
                self._check_name(name, "the name of an adapter", where)
                if "=" in name:
                    self._fail(f"the name of an adapter is {_short(name)}; it must have no =", where)
            return tuple(f"{name}={path}" for name, path in value.items())
        texts = self._value("lora", value, where)
        return tuple(texts)

    def _check_name(self, name: str, what: str, where: str) -> None:
        if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
            self._fail(f"{what} is {_short(name)}; it must have 1 to {MAX_NAME_CHARS} visible characters", where)

    def _defaults(self, table: Mapping[str, Any], name: str) -> RequestDefaults:
        where, inner = _header(name), _header(name, "sampling")
        sampling, variables = table.get("sampling", {}), table.get("chat_template_kwargs", {})
        for key, value in (("sampling", sampling), ("chat_template_kwargs", variables)):
            if not isinstance(value, dict):
                self._fail(f"{_shown(key)} is {_short(value)}; it must be a table", where)
        values = self._known(sampling, SAMPLING, inner)
        for key, value in values.items():
            try:
                SamplingParams(**{key: value})
            except InvalidParameter as error:
                self._fail(str(error), inner)
        problem = self._declared[_VARIABLES].problem(self._as_json("chat_template_kwargs", variables, where))
        if problem is not None:
            self._fail(f"chat-template-kwargs is {_short(variables)}; {problem}", where)
        return RequestDefaults(values, variables)

    def _check_unique(self, tables: Sequence[ModelTable]) -> None:
        owners: dict[str, str] = {}
        for table in tables:
            named: list[ModelTable | Preset] = [table, *table.presets]
            for owner in named:
                for name in (owner.name, *owner.aliases):
                    if name in owners:
                        self._fail(f"the name {name!r} is given twice, here and in {owners[name]}", _header(owner.name))
                    owners[name] = _header(owner.name)

    def _fail(self, problem: str, table: str | None = None) -> NoReturn:
        where = self._path if table is None else f"{self._path}, {table}"
        raise ConfigError(f"{where}: {problem}")


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_wrong_list(setting: Setting, value: Any) -> bool:
    is_list = isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    return setting.kind is tuple and not is_list


def _meant(key: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    if len(key) > MAX_SHOWN_CHARS:
        return ""
    near = get_close_matches(key, known, n=1, cutoff=0.7)
    return f"; did you mean {_shown(near[0])}?" if near else ""


def _shown(key: str) -> str:
    """A key as files write it: with the dashes of flags, or as requests name a parameter."""
    return key if key in SAMPLING else key.replace("_", "-")


def _header(*names: str) -> str:
    """The line with which the table of a model begins, with names in quotes where TOML needs them."""
    parts = [name if _BARE.fullmatch(name) else _short(name) for name in names]
    return f"[{'.'.join(['models', *parts])}]"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN_CHARS else shown[: MAX_SHOWN_CHARS - 1] + "…"
