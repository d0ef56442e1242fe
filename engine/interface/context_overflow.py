"""The error of a request that does not fit into the model's context."""

from __future__ import annotations

from sampling.host.params import InvalidParameter


class ContextOverflow(InvalidParameter):
    """A prompt, or a prompt with the output that it asks for, is longer than the model's context.

    The sentence begins as OpenAI's and vLLM's do, because clients recognise it by its words and shorten the prompt.

    Args:
        limit: tokens of the context.
        num_tokens: of the prompt; at least so many, where they were not all counted.
        what: what is too long, as a clause.
        max_tokens: of the output, where the prompt alone would fit.
    """

    def __init__(self, param: str, what: str, *, limit: int, num_tokens: int, max_tokens: int | None = None) -> None:
        super().__init__(
            param,
            f"This model's maximum context length is {limit} tokens, prompt and output together. However, {what}.",
        )
        self.what = what
        self.limit = limit
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens

    def renamed(self, param: str) -> ContextOverflow:
        return ContextOverflow(
            param, self.what, limit=self.limit, num_tokens=self.num_tokens, max_tokens=self.max_tokens
        )
