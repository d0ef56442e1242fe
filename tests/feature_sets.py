"""Sets of sampling parameters that together use every feature, for tests that mix requests."""

from __future__ import annotations

from typing import Any

FEATURE_SETS: list[dict[str, Any]] = [
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": 0.4, "logprobs": 3},
    {"temperature": 0.9, "repetition_penalty": 1.1, "presence_penalty": -0.5, "top_k": 50},
    {"temperature": 0.0, "dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_breaker_ids": (198,)},
    {"temperature": 1.1, "dry_multiplier": 2.0, "dry_base": 1.2, "dry_penalty_last_n": 64, "top_p": 0.9},
    {"temperature": 1.0, "xtc_probability": 0.6, "xtc_threshold": 0.05, "typical_p": 0.95},
    {"temperature": 1.3, "top_n_sigma": 1.5, "min_p": 0.02},
    {"temperature": 0.7, "logit_bias": ((198, -100.0), (260, 2.5), (28, -1.0)), "logprobs": 0},
    {"temperature": 1.0, "allowed_token_ids": tuple(range(200, 2000)), "top_p": 0.95},
    {"temperature": 0.0, "bad_words": ((260,), (28, 260), (253, 1165, 3365)), "min_tokens": 6},
    {
        "temperature": 1.0, "top_k": 200, "top_p": 0.98, "min_p": 0.001, "typical_p": 0.99, "top_n_sigma": 4.0,
        "repetition_penalty": 1.05, "frequency_penalty": 0.1, "presence_penalty": 0.1, "dry_multiplier": 0.5,
        "xtc_probability": 0.3, "logit_bias": ((30, 1.0),), "bad_words": ((198, 198),), "min_tokens": 3,
        "logprobs": 20, "logprob_token_ids": (0, 28, 30),
    },
]  # fmt: skip
