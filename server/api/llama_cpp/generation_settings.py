"""The parameters of an answer as llama.cpp's `generation_settings` and the `params` of /props name them."""

from collections.abc import Sequence
from typing import Any

from sampling.host.params import SamplingParams

_RANDOM_SEED = 2**32 - 1  # what llama.cpp writes where no seed was given
_SAME_NAMES = (
    "dry_allowed_length", "dry_base", "dry_multiplier", "dry_penalty_last_n", "frequency_penalty", "ignore_eos",
    "min_p", "presence_penalty", "temperature", "top_k", "top_n_sigma", "top_p", "typical_p", "xtc_probability",
    "xtc_threshold",
)  # fmt: skip
# What this server does not have, by the values that turn it off.
_OFF: dict[str, Any] = {
    "adaptive_decay": 0.9,
    "adaptive_target": -1.0,
    "dynatemp_exponent": 1.0,
    "dynatemp_range": 0.0,
    "lora": [],
    "min_keep": 0,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5.0,
    "n_discard": 0,
    "n_keep": 0,
    "repeat_last_n": -1,  # the whole text
}
_SAMPLERS = ("penalties", "dry", "temperature", "top_n_sigma", "min_p", "top_k", "typ_p", "top_p", "xtc")


def settings_object(
    params: SamplingParams, *, num_predicted: int = -1, stops: Sequence[str] = (), is_streamed: bool = False
) -> dict[str, Any]:
    """`num_predicted` is the limit of the answer's length; -1: none. The biases are not among them."""
    return {
        "seed": _RANDOM_SEED if params.seed is None else params.seed,
        **{name: getattr(params, name) for name in _SAME_NAMES},
        "repeat_penalty": params.repetition_penalty,
        "max_tokens": num_predicted,
        "n_predict": num_predicted,
        "n_probs": params.logprobs or 0,
        "post_sampling_probs": params.drawn_logprobs,
        "samplers": _SAMPLERS,
        "stop": list(stops),
        "stream": is_streamed,
        **_OFF,
    }
