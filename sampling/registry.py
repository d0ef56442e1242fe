"""The registry of the sampling features on the device. Adding a feature adds one entry here."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from sampling.filters.min_p import min_p_mask
from sampling.filters.top_k import top_k_mask
from sampling.filters.top_n_sigma import top_n_sigma_mask
from sampling.filters.top_p import top_p_mask
from sampling.filters.typical_p import typical_p_mask
from sampling.filters.xtc import xtc_mask
from sampling.host.features import DRAWN_LOGPROBS, FEATURES, Stage
from sampling.logprobs import LOGPROBS
from sampling.processors.allowed_tokens import ALLOWED_TOKENS
from sampling.processors.bad_words import BAD_WORDS
from sampling.processors.dry import DRY
from sampling.processors.grammar_mask import GRAMMAR_MASK
from sampling.processors.history import HISTORY
from sampling.processors.logit_bias import LOGIT_BIAS
from sampling.processors.logits_processor import LogitsProcessor
from sampling.processors.min_tokens import MIN_TOKENS
from sampling.processors.penalties import PENALTIES

PROCESSORS: Mapping[str, LogitsProcessor[Any, Any]] = {
    "history": HISTORY,
    "allowed_tokens": ALLOWED_TOKENS,
    "logit_bias": LOGIT_BIAS,
    "min_tokens": MIN_TOKENS,
    "bad_words": BAD_WORDS,
    "grammar": GRAMMAR_MASK,
    "penalties": PENALTIES,
    "dry": DRY,
    "logprobs": LOGPROBS,
    DRAWN_LOGPROBS: LogitsProcessor(),  # which logprobs are told; nothing changes and nothing is kept
}

# Of the candidates and the feature's columns, float32 or int32[num_rows]: which tokens the filter leaves,
# bool[num_rows, vocab_size]. A row whose first column is off keeps all of them.
FILTERS: Mapping[str, Callable[..., jax.Array]] = {
    "top_n_sigma": lambda left, top_n_sigma: top_n_sigma_mask(left.centred, top_n_sigma),
    "min_p": lambda left, min_p: min_p_mask(left.scaled, min_p),
    "top_k": lambda left, top_k: top_k_mask(left.logits, top_k),
    "typical_p": lambda left, typical_p: typical_p_mask(left.weights, typical_p),
    "top_p": lambda left, top_p: top_p_mask(left.weights, top_p),
    "xtc": lambda left, probability, threshold: xtc_mask(left.weights, probability, threshold, left.uniform),
}

_missing = {feature.name for feature in FEATURES} ^ {*PROCESSORS, *FILTERS}
_misplaced = {feature.name for feature in FEATURES if (feature.stage is Stage.FILTER) is not (feature.name in FILTERS)}
if _missing or _misplaced:
    raise RuntimeError(f"host and device differ in the sampling features {sorted(_missing | _misplaced)}")

# Features that keep something for each slot.
STATEFUL = {name: feature for name, feature in PROCESSORS.items() if feature.keeps_state}

if STATEFUL.keys() != {feature.name for feature in FEATURES if feature.keeps_state and feature.name in PROCESSORS}:
    raise RuntimeError("host and device differ in which sampling features keep a state")
