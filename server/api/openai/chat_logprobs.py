"""Log probabilities in the shape of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.interface.types import TokenLogprobs
from server.api.openai.logprobs import WireLogprobs, clamp


@dataclass(slots=True)
class ChatLogprobs(WireLogprobs):
    """OpenAI's shape for chat: an object for each token."""

    def _shape(self, index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        content = [
            self._of_token(token_id, of_token)
            for token_id, of_token in zip(token_ids, logprobs, strict=True)
            if of_token is not None
        ]
        return {"content": content, "refusal": None}

    def _of_token(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        shape = self._entry(token_id, logprobs.logprob)
        if self.with_ids:
            shape["rank"] = logprobs.rank
            if logprobs.masked:
                shape["masked_probability"] = logprobs.masked
        shape["top_logprobs"] = [self._entry(*alternative) for alternative in self._alternatives(logprobs)]
        if self.listed_ids:
            shape["listed_logprobs"] = self._listed(logprobs)
        return shape

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.token_bytes[token_id]
        shape = {"token": self._name(token_id), "logprob": clamp(logprob), "bytes": list(data) if data else None}
        if self.with_ids:
            shape["id"] = token_id
        return shape
