"""The probabilities with which tokens were drawn, in llama.cpp's JSON (`post_sampling_probs`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.interface.types import TokenLogprobs
from server.api.openai.logprobs import ChatLogprobs


@dataclass(slots=True)
class DrawnProbabilities(ChatLogprobs):
    """An object for each token; what could not be drawn is not among the alternatives."""

    def _of_token(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        alternatives = [self._entry(*alternative) for alternative in logprobs.top]
        top = [entry for entry in alternatives if entry["prob"] > 0.0]
        return {**self._entry(token_id, logprobs.logprob), "top_probs": top}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "id": token_id,
            "token": self._name(token_id),
            "bytes": list(self.tokenizer.token_bytes[token_id] or b""),
            "prob": min(math.exp(logprob), 1.0),
        }
