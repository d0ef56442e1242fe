"""`adapter_config.json` of an adapter in PEFT's layout: ranks, scales, and what is refused of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from engine.adapters.targets import PREFIXES
from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import JsonFile

CONFIG = "adapter_config.json"

# Fields that mean more than a pair of low-rank matrices, with what they are called.
_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "modules to save, which are whole weights",
    "lora_bias": "biases of its own",
    "fan_in_fan_out": "transposed matrices (fan_in_fan_out)",
    "trainable_token_indices": "trained token embeddings",
    "target_parameters": "changes of single parameters, such as those of experts",
    "layer_replication": "replicated layers",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "an activated LoRA",
    "megatron_config": "Megatron's layers",
}
# Initialisations that change the base model too, so that the pair alone is of no use.
_CHANGING_THE_BASE = re.compile(r"(pissa|olora|corda|loftq|lora_ga)", re.IGNORECASE)
_USUAL_ALPHA = 8.0  # PEFT's
_MAX_PATTERN_LETTERS = 200
_MODEL = re.compile(rf"\^?(?:(?:{'|'.join(sorted(PREFIXES))})\\?\.)*")  # at the begin of a pattern
_NESTED_REPEAT = re.compile(r"\)\s*[*+{?]")  # takes exponential time, perhaps
# Each of them multiplies the time of a match, in which Python's other threads stand still.
_BRANCH = re.compile(r"\(\??|[*+?{]")
_MAX_BRANCHES = 3
_MAX_PATTERNS = 4096  # each is compared with the name of each module


class PeftConfig:
    """What an adapter's configuration says of its modules."""

    def __init__(self, config: JsonFile) -> None:
        """Raises ModelError: it is no LoRA adapter, or has what is not served."""
        self._config = config
        kind = config.value("peft_type")
        if kind != "LORA":
            raise config.error("peft_type", "only adapters of the type LORA are served")
        for field, what in _REFUSED.items():
            if config.value(field):
                raise ModelError(f"{config.path}: the adapter has {what}, which is not served")
        if config.value("bias") not in (None, "none"):
            raise config.error("bias", "adapters with biases are not served; it must be none")
        start = config.value("init_lora_weights")
        if isinstance(start, str) and _CHANGING_THE_BASE.match(start):
            raise config.error(
                "init_lora_weights", "such an adapter changes its base model too; convert it to a plain LoRA adapter"
            )
        self._rank = _positive_integer(config, "r")
        self._alpha = _number(config, "lora_alpha", _USUAL_ALPHA)
        self._ranks = _patterns(config, "rank_pattern")
        self._alphas = _patterns(config, "alpha_pattern")
        self._is_rank_stabilised = config.value("use_rslora") is True

    @property
    def base_model(self) -> str | None:
        """The model that it was made for, as its maker called it."""
        name = self._config.value("base_model_name_or_path")
        return name if isinstance(name, str) and name else None

    @property
    def largest_rank(self) -> int:
        """Of all modules, as far as the configuration says."""
        return max(self._rank, *(int(rank) for rank in self._ranks.values())) if self._ranks else self._rank

    def rank(self, module: str) -> int:
        return int(_matching(self._ranks, module, self._rank))

    def scale(self, module: str) -> float:
        """What the product of a module's pair is multiplied with (Kalajdzievski, "rsLoRA", 2023, or Hu et al.)."""
        rank, alpha = self.rank(module), _matching(self._alphas, module, self._alpha)
        return alpha / math.sqrt(rank) if self._is_rank_stabilised else alpha / rank


def _matching(patterns: Mapping[re.Pattern[str], float], module: str, default: float) -> float:
    """The value of the first pattern that is the end of a module's plain name, as PEFT compares them."""
    for pattern, value in patterns.items():
        if pattern.fullmatch(module):
            return value
    return default


def _patterns(config: JsonFile, key: str) -> dict[re.Pattern[str], float]:
    table = config.table(key)
    if table is None:
        return {}
    if len(table.names) > _MAX_PATTERNS:
        raise config.error(key, f"it has {len(table.names)} patterns; at most {_MAX_PATTERNS} are read")
    found: dict[re.Pattern[str], float] = {}
    for pattern in table.names:
        value = table.value(pattern)
        if not _is_number(value) or value <= 0 or (key == "rank_pattern" and value != int(value)):
            raise config.error(key, "its values must be positive numbers, and those of ranks integers")
        if len(pattern) > _MAX_PATTERN_LETTERS or _NESTED_REPEAT.search(pattern):
            raise config.error(key, f"a pattern has at most {_MAX_PATTERN_LETTERS} letters and repeats no group")
        if len(_BRANCH.findall(pattern)) > _MAX_BRANCHES:
            raise config.error(key, f"a pattern has at most {_MAX_BRANCHES} groups and repeats")
        plain = _MODEL.sub("", pattern, count=1)
        try:
            re.compile(pattern)
            found[re.compile(rf"(?:.*\.)?(?:{plain})")] = value
        except (re.error, OverflowError, RecursionError) as error:
            raise config.error(key, f"{pattern!r} is no regular expression: {error}") from error
    return found


def _positive_integer(config: JsonFile, key: str) -> int:
    value = config.value(key)
    if type(value) is not int or value < 1:
        raise config.error(key, "it must be a positive integer")
    return value


def _number(config: JsonFile, key: str, default: float) -> float:
    value = config.value(key)
    if value is None:
        return default
    if not _is_number(value):
        raise config.error(key, "it must be a number")
    return float(value)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False
