"""Computes one request of a batch as its route would, without HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import orjson

from engine.interface.types import FinishReason
from server.admission.keyring import Tenant
from server.api.batches.batch_lines import LineAnswer, LineRequest, token_counts
from server.api.openai.chat import CHAT_COMPLETIONS
from server.api.openai.completions import COMPLETIONS
from server.api.openai.openai_objects import error_object
from server.api.openai.token_requests import EmbeddingsRequest
from server.api.pooling.rerank_request import RerankRequest
from server.api.pooling.score_request import ScoreRequest
from server.api.route import AnswerContext, BodyRoute, checked
from server.generation.answers import Answer
from server.http.entry.served import HasIgnored, ignored_in, in_memory
from server.http.pooling.embedding import embed
from server.http.pooling.reranking import in_form_of, rerank
from server.http.pooling.scoring import score
from server.http.responses.create_response import parse_turn
from server.http.responses.response_runner import ResponseRunner
from server.protocol.errors import ApiError, invalid_value
from server.serving.served_models import Phase, ServedModels
from server.serving.submit import Submission
from server.startup.logs import failure_of
from server.storage.database import StoreError, TooLarge


class Computed(NamedTuple):
    """The body of an answer, and the tokens that it has taken, as answers tell them."""

    body: Any
    usage: Any


# From the decoded body of a request and its id.
Compute: TypeAlias = Callable[[ServedModels, Tenant, dict[str, Any], str], Awaitable[Computed]]

_RETRY_S = 1.0


class Postponed(Exception):
    """The server cannot compute a request now; it shall be tried again."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.seconds = seconds


async def execute(served: ServedModels, tenant: Tenant, request: LineRequest) -> LineAnswer:
    """The answer to a request, or the error that its route would have sent.

    Raises:
        Postponed: the server ends, its queue or a budget is full, or a model cannot be loaded.
    """
    request_id = uuid.uuid4().hex
    try:
        compute = _COMPUTE.get(request.url)
        if compute is None:
            raise invalid_value(f"url is {request.url}; a batch can have {', '.join(_COMPUTE)}", "url")
        # The priority is that of batches, and what nobody has asked to be stored is in the batch's file.
        body = {"store": False} if request.url == _RESPONSES else {}
        body |= {name: value for name, value in request.body.items() if name != "priority"}
        answer, usage = await compute(served, tenant, body, request_id)
        encoded = await served.workers.run(orjson.dumps, answer)
        _count(tenant)
        return LineAnswer(200, request_id, encoded, token_counts(usage))
    except Postponed:
        raise
    except Exception as error:  # noqa: BLE001 - it is the answer to this request, and the log has the traceback
        if isinstance(error, StoreError) and not isinstance(error, TooLarge):
            raise Postponed(_RETRY_S, str(error)) from None
        failure = failure_of(error, "batch_request_failed")
        seconds = _seconds_until_retry(failure)
        if seconds is None:
            _count(tenant)
            return LineAnswer(failure.status, request_id, orjson.dumps(error_object(failure)))
        message = failure.message
    raise Postponed(seconds, message)


def _count(tenant: Tenant) -> None:
    """Counts a request of the tenant's key, for which a batch has no limit."""
    if tenant.account is not None:
        tenant.account.usage.num_requests += 1


def _seconds_until_retry(error: ApiError) -> float | None:
    """How long a request waits that was refused for now; None for an error that would be there again."""
    retry_after = error.headers.get("Retry-After")
    if error.status == 503 or (error.status == 429 and retry_after is not None):
        return _RETRY_S if retry_after is None else float(retry_after)
    return None


def _check_ignored(parsed: HasIgnored, served: ServedModels) -> None:
    """Logs the unknown parameters; raises ApiError where the server is strict."""
    ignored = ignored_in(parsed, served)
    if ignored:
        served.ignored_parameters.tell(ignored)


async def _generate(
    route: BodyRoute, served: ServedModels, tenant: Tenant, body: dict[str, Any], request_id: str
) -> Computed:
    call = await served.workers.run(lambda: checked(lambda: route.parse(body)))
    _check_ignored(call, served)
    if call.is_streamed:
        raise _never("stream")
    model = served.find(call.request.model)
    name = call.request_id or request_id
    async with served.generate(model, Submission(call.request, tenant, (name, request_id))) as generation:
        context = AnswerContext(route.framing, name, model.model_name, model.tokenizer, model.answer_format)
        writer = call.make_writer(generation, context)
        answers = await generation.collect()
        _check_complete(answers, served, may_time_out=call.request.timeout is not None)
        return _computed(await served.workers.run(writer.to_dict, answers))


def _computed(body: dict[str, Any]) -> Computed:
    return Computed(body, body.get("usage"))


def _check_complete(answers: Sequence[Answer], served: ServedModels, *, may_time_out: bool) -> None:
    """Raises Postponed where the end of the server has cut the answers off, or they never began."""
    if served.phase is not Phase.READY and any(answer.finish_reason is FinishReason.ABORT for answer in answers):
        raise Postponed(_RETRY_S, "the server ends")
    has_begun = any(answer.finish_reason is not FinishReason.TIMEOUT or answer.token_ids for answer in answers)
    if not has_begun and not may_time_out:
        raise Postponed(_RETRY_S, "the request has waited longer than the server lets one wait")


async def _respond(served: ServedModels, tenant: Tenant, body: dict[str, Any], request_id: str) -> Computed:
    turn = await served.workers.run(lambda: checked(lambda: parse_turn(body)))
    _check_ignored(turn, served)
    for name in ("stream", "background", "resumable"):
        if getattr(turn.body, name):
            raise _never(name)
    runner = ResponseRunner(served, tenant)
    with served.admission_budget.receive() as share:
        await runner.look_back(turn, share)
        response = await runner.run(turn, None, request_id=request_id)
    if served.phase is not Phase.READY and response["status"] not in ("completed", "incomplete"):
        raise Postponed(_RETRY_S, "the server ends")
    return _computed(response)


def _pooling(
    kind: type[EmbeddingsRequest] | type[RerankRequest] | type[ScoreRequest], answer: Callable[..., Awaitable[Any]]
) -> Compute:
    async def compute(served: ServedModels, tenant: Tenant, body: dict[str, Any], _request_id: str) -> Computed:
        query = await served.workers.run(lambda: checked(lambda: kind.parse(body)))
        _check_ignored(query, served)
        model = served.find(query.model)
        async with in_memory(served, model):
            response: dict[str, Any] = await answer(query, model, served, tenant)
        if isinstance(query, RerankRequest):
            return Computed(in_form_of(query, response), response["usage"])
        return _computed(response)

    return compute


def _never(name: str) -> ApiError:
    return invalid_value(f"{name} is true; a request of a batch is answered whole, in the batch's file", name)


_RESPONSES = "/v1/responses"
_COMPUTE: Mapping[str, Compute] = {
    CHAT_COMPLETIONS.path: partial(_generate, CHAT_COMPLETIONS),
    COMPLETIONS.path: partial(_generate, COMPLETIONS),
    "/v1/embeddings": _pooling(EmbeddingsRequest, embed),
    _RESPONSES: _respond,
    "/v1/rerank": _pooling(RerankRequest, rerank),
    "/v1/score": _pooling(ScoreRequest, score),
}
EXECUTED = tuple(_COMPUTE)  # the URLs that requests of batches may have
