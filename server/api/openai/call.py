"""The base class of OpenAI's calls: from the common fields of a body to the generation request."""

from collections.abc import Sequence
from typing import Any

import orjson

from engine.interface.types import PromptProgress
from server.api.framing import Framing
from server.api.openai.chunk_writer import ChunkWriter
from server.api.openai.llama_timings import progress_timings
from server.api.openai.logprobs import WireLogprobs
from server.api.openai.openai_objects import ResponseHead, progress_object
from server.api.route import AnswerContext, BodyCall
from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import PromptSource
from server.protocol.generation_fields import GenerationFields
from server.protocol.sampling_fields import SAME_AS_PARAMS
from server.text.detokenizer import HasTokenTexts


class OpenAICall(BodyCall):
    """A call whose body is a completion request or a chat completion request.

    Args:
        of_route: fields of GenerationRequest that routes have different names or defaults for.
    """

    writer_kind: type[ChunkWriter]  # what writes the answer
    logprobs_kind: type[WireLogprobs]  # the shape in which the route writes log probabilities
    id_prefix: str  # of the answers' ids

    def __init__(self, body: GenerationFields, prompts: Sequence[PromptSource], **of_route: Any) -> None:
        self._fields = body
        self._head: ResponseHead | None = None
        super().__init__(to_request(body, prompts, **of_route), body.request_id, body.ignored, body.stream is True)

    @property
    def wants_timings(self) -> bool:
        return self._fields.include_metrics is True

    @property
    def wants_llama_timings(self) -> bool:
        """Whether every delta has llama.cpp's `timings`."""
        return self._fields.timings_per_token is True

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """The tokens that end an answer because the request asks for it."""
        return self._fields.stop_token_ids or ()

    def make_writer(self, generation: Generation, context: AnswerContext) -> ChunkWriter:
        head = self._answer_head(context.request_id, context.model)
        logprobs = self.make_logprobs(generation, context.tokenizer)
        return self.writer_kind(head, self._fields, generation, logprobs, context)

    def encode_progress(
        self, progress: PromptProgress, index: int, framing: Framing, request_id: str, model: str
    ) -> bytes:
        """A chunk without choices."""
        head = self._answer_head(request_id, model).encode(self.writer_kind.chunk_object)
        usage = b',"usage":null' if self._fields.wants_usage else b""
        fields: dict[str, Any] = {"prompt_progress": progress_object(progress, index)}
        if self._fields.timings_per_token:
            fields["timings"] = progress_timings(progress)
        return framing.frame(b'%b,"choices":[],%b%b}' % (head, orjson.dumps(fields)[1:-1], usage))

    def _answer_head(self, request_id: str, model: str) -> ResponseHead:
        """The same object at every call: all chunks of an answer have the time of its beginning."""
        if self._head is None:
            self._head = ResponseHead.make(self.id_prefix, request_id, model)
        return self._head

    def make_logprobs(
        self, generation: Generation, tokenizer: HasTokenTexts, kind: type[WireLogprobs] | None = None
    ) -> WireLogprobs | None:
        """The writer of the log probabilities, in the route's own shape or in another one; None if none are wanted."""
        body = self._fields
        of_answers = body.num_logprobs is not None
        if not of_answers and body.prompt_logprobs is None:
            return None
        return (kind or self.logprobs_kind)(
            tokenizer,
            num_of_prompt=body.prompt_logprobs,
            num_of_echo=body.num_logprobs if self.request.echoes else None,
            echoes=[prompt.echo for prompt in generation.prompts],
            prompts=[prompt.token_ids for prompt in generation.prompts],
            num_choices=body.num_choices,
            listed_ids=body.logprob_token_ids or (),
            of_answers=of_answers,
            with_ids=body.return_token_ids is True,
            names_ids=body.return_tokens_as_token_ids is True,
        )


def to_request(body: GenerationFields, prompts: Sequence[PromptSource], **of_route: Any) -> GenerationRequest:
    num_logprobs, grammar = body.num_logprobs, body.grammar_request
    sampling: dict[str, Any] = {}
    for name in SAME_AS_PARAMS:
        value = getattr(body, name)
        if value is not None:
            sampling[name] = tuple(value) if isinstance(value, list) else value
    if num_logprobs is not None:
        sampling["logprobs"] = num_logprobs
        if of_route.get("echoes"):
            sampling["prompt_logprobs"] = max(num_logprobs, body.prompt_logprobs or 0)
    length = {"max_tokens": body.max_tokens, **of_route}
    most = length["max_tokens"]
    if body.is_at_most and most is not None and most >= 1 and body.truncate_prompt_tokens != -1:
        length |= {"max_tokens": None, "default_max_tokens": most}
    return GenerationRequest(
        prompts,
        sampling,
        model=body.model,
        num_choices=body.num_choices,
        num_sampled=body.num_sampled,
        bad_words=body.bad_words,
        sequence_breakers=body.dry_sequence_breakers,
        stops=body.stop,
        most_prompt_tokens=body.truncate_prompt_tokens,
        keeps_first_tokens=body.truncation_side == "right",
        num_prompt_output_tokens=body.num_prompt_output_tokens or 0,
        include_stop=body.include_stop_str_in_output is True,
        grammar=grammar,
        priority=body.priority,
        cache_salt=body.cache_salt,
        adapters=tuple((each.id, each.scale) for each in body.lora or () if each.scale),
        timeout=body.timeout,
        streaming=body.streaming,
        **length,
    )
