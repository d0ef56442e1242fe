"""One request as a span, with the attributes of OpenTelemetry's semantic conventions for generative AI.

Nothing happens while tokens come: the spans below it, `queue`, `prompt` and `tokens`, are made at its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from server.generation.answers import GenerationStats, Timings
from server.generation.generation_request import GenerationRequest
from server.generation.observer import GenerationObserver
from server.generation.output_sequence import Delta, OutputSequence
from server.generation.prompts import PreparedPrompt
from server.protocol.errors import to_api_error
from server.telemetry.message_content import OutputMessages, input_messages, stop_sequences
from server.telemetry.trace_context import set_trace_id

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_SYSTEM = "eagre"

# Parameters of the sampler that the conventions have a name for.
_SAMPLING = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


class RequestSpan(GenerationObserver):
    """The span of one request, from its construction to `finished`."""

    def __init__(
        self, tracer: Tracer, parent: Context, request: GenerationRequest, model: str, request_ids: Sequence[str]
    ) -> None:
        """Begins the span below the caller's in `parent`, if there is one; `model` is its name on this server."""
        from opentelemetry.trace import SpanKind

        operation = "text_completion" if request.prompt_parameter == "prompt" else "chat"
        attributes = _of_request(request, model, operation)
        if request_ids:
            attributes["gen_ai.request.id"] = attributes["gen_ai.response.id"] = request_ids[0]
        self._tracer = tracer
        self._span: Span = tracer.start_span(
            f"{operation} {model}", context=parent, kind=SpanKind.SERVER, attributes=attributes
        )
        self._is_streamed = request.streaming.is_wanted
        self._submitted_at = 0.0  # seconds since the epoch
        set_trace_id(f"{self._span.get_span_context().trace_id:032x}")

    def submitted(self, prompts: Sequence[PreparedPrompt]) -> None:
        self._submitted_at = time.time()

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._span
        if span.is_recording():
            if stats is not None:
                span.set_attributes(_of_generation(stats, is_streamed=self._is_streamed))
                if stats.timings is not None:  # of several sequences the parts overlap
                    self._add_parts(stats.timings)
            if isinstance(error, Exception) and not isinstance(error, ConnectionError):
                # Its message may quote what the client sent, so that the span has the kind alone.
                span.set_attribute("error.type", to_api_error(error).code or type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _add_parts(self, timings: Timings) -> None:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span)
        begin = self._submitted_at
        admitted = begin + timings.queue_time
        first = begin + timings.time_to_first_token
        parts = (
            ("queue", begin, admitted),
            ("prompt", admitted, first),
            ("tokens", first, admitted + timings.generation_time),
        )
        for name, start, end in parts:
            part = self._tracer.start_span(name, context=context, start_time=_nanoseconds(start))
            part.end(_nanoseconds(max(start, end)))


class ContentSpan(RequestSpan):
    """A span that has the prompts and the answers too."""

    def __init__(
        self, tracer: Tracer, parent: Context, request: GenerationRequest, model: str, request_ids: Sequence[str]
    ) -> None:
        super().__init__(tracer, parent, request, model, request_ids)
        self._outputs = OutputMessages()
        if self._span.is_recording():
            self._span.set_attribute("gen_ai.input.messages", input_messages(request))
            if request.stops:
                self._span.set_attribute("gen_ai.request.stop_sequences", stop_sequences(request))

    def tokens(self, sequence: OutputSequence, token_ids: Sequence[int], deltas: Sequence[Delta], now: float) -> None:
        self._outputs.add(deltas)

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        if self._span.is_recording():
            reasons = [] if stats is None else stats.finish_reasons
            self._span.set_attribute("gen_ai.output.messages", self._outputs.to_json(reasons))
        super().finished(stats, error)


def _of_request(request: GenerationRequest, model: str, operation: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _SYSTEM,
        "gen_ai.system": _SYSTEM,  # the name of the same in older versions
        "gen_ai.request.model": request.model or model,
        "gen_ai.request.stream": request.streaming.is_wanted,
        "gen_ai.response.model": model,
        **_of_sampling(request.sampling),
    }
    if _fits(request.max_tokens):
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    if request.num_choices > 1:
        attributes["gen_ai.request.choice.count"] = request.num_choices
    return attributes


def _of_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {attribute: sampling[name] for name, attribute in _SAMPLING.items() if _fits(sampling.get(name))}


def _fits(value: object) -> bool:
    """Whether a span can hold the number: an integer of more than 64 bits would make the whole export fail."""
    return isinstance(value, float) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)


def _of_generation(stats: GenerationStats, *, is_streamed: bool) -> dict[str, Any]:
    usage, timings = stats.usage, stats.timings
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.output_tokens": usage.num_completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
        "gen_ai.response.finish_reasons": [str(reason) for reason in stats.finish_reasons if reason is not None],
        "gen_ai.latency.e2e": stats.duration,
    }
    if stats.time_to_first_token is not None:
        attributes["gen_ai.server.time_to_first_token"] = stats.time_to_first_token
        attributes["gen_ai.latency.time_to_first_token"] = stats.time_to_first_token
        if is_streamed:
            attributes["gen_ai.response.time_to_first_chunk"] = stats.time_to_first_token
    if timings is not None:
        attributes["gen_ai.latency.time_in_queue"] = timings.queue_time
        if timings.mean_inter_token_latency is not None:
            attributes["gen_ai.server.time_per_output_token"] = timings.mean_inter_token_latency
    return attributes


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
