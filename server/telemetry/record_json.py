"""Request records as JSON, for GET /v1/requests. Whole records belong in a worker thread: prompts may be long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import orjson

from sampling.host.params import SamplingParams
from server.generation.prompts import PreparedPrompt
from server.telemetry.request_record import AnswerRecord, RequestRecord
from server.text.detokenizer import HasTokenTexts, IncrementalDetokenizer, token_text_alone

_DEFAULTS = SamplingParams()


def summarise(record: RequestRecord) -> dict[str, Any]:
    """One line of the list; times in milliseconds since the request came, except `created`."""
    prompts, answers = record.prompts, record.answers
    first = min((answer.times[0] for answer in answers if answer.token_ids), default=None)
    admitted = min((answer.admitted_at for answer in answers if answer.admitted_at is not None), default=None)
    after = time.perf_counter() - record.began if record.ended_after is None else record.ended_after
    return {
        "object": "request",
        "id": record.ids[0] if record.ids else None,
        "ids": record.ids,
        "number": record.number,
        "created": round(record.arrived, 3),
        "state": record.state,
        "model": record.model,
        "route": record.route,
        "tenant": record.tenant,
        "num_prompt_tokens": sum(len(prompt.token_ids) for prompt in prompts),
        "num_cached_tokens": sum(_cached(prompts, answers)),
        "num_output_tokens": sum(len(answer.token_ids) for answer in answers),
        "queue_ms": None if admitted is None else _ms(max(admitted, 0.0)),
        "first_token_ms": None if first is None else _ms(first),
        "duration_ms": _ms(after),
        "finish_reasons": [answer.finish_reason for answer in answers],
        "error": None if record.error is None else _error(record),
    }


def show(record: RequestRecord, tokenizer: HasTokenTexts | None) -> bytes:
    """The whole record, as JSON; without a tokenizer in memory, the tokens have ids alone."""
    prompts, answers = record.prompts, record.answers  # the record may lose them meanwhile
    params = prompts[0].params[0] if prompts else None
    told = [
        {**_tokens(prompt.token_ids, tokenizer), "num_cached_tokens": num_cached}
        for prompt, num_cached in zip(prompts, _cached(prompts, answers), strict=True)
    ]
    return orjson.dumps(
        {
            **summarise(record),
            "request": orjson.Fragment(record.asked or b"null"),
            "sampling": None if params is None else _changed(params),
            "prompts": told,
            "answers": [_answer(index, answer, tokenizer) for index, answer in enumerate(answers)],
        },
        default=list,
    )


def _answer(index: int, answer: AnswerRecord, tokenizer: HasTokenTexts | None) -> dict[str, Any]:
    times, counts = answer.times.tolist(), answer.counts.tolist()  # an event may come between the two
    return {
        "index": index,
        **_tokens(answer.token_ids.tolist(), tokenizer),
        "events": [[_ms(at), count] for at, count in zip(times, counts, strict=False)],
        "finish_reason": answer.finish_reason,
        "stop_string": answer.stop_string,
    }


def _tokens(token_ids: Sequence[int], tokenizer: HasTokenTexts | None) -> dict[str, Any]:
    if tokenizer is None:
        return {"token_ids": token_ids, "token_texts": None, "text": None}
    detokenizer = IncrementalDetokenizer(tokenizer)
    return {
        "token_ids": token_ids,
        "token_texts": [token_text_alone(tokenizer, token_id) for token_id in token_ids],
        "text": detokenizer.decode(list(token_ids)),
    }


def _cached(prompts: Sequence[PreparedPrompt], answers: Sequence[AnswerRecord]) -> list[int]:
    """Returns for each prompt how many tokens its first answer found in the prefix cache."""
    cached, first = [], 0
    for prompt in prompts:
        cached.append(answers[first].num_cached_tokens if first < len(answers) else 0)
        first += len(prompt.params)
    return cached


def _changed(params: SamplingParams) -> dict[str, Any]:
    """Returns the sampling parameters that differ from their defaults."""
    values = {field.name: getattr(params, field.name) for field in fields(params)}
    return {name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)}


def _error(record: RequestRecord) -> dict[str, Any]:
    assert record.error is not None
    error = record.error
    return {"message": error.message, "param": error.param, "code": error.code, "status": error.status}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
