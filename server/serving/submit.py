"""The path of a checked request to its engine: admit, load the model, prepare prompts and grammar, queue, generate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from engine.interface.types import AdapterChoice, PromptProgress
from server.admission.admission_budget import AdmissionBudget
from server.admission.keyring import ANYBODY, Tenant
from server.admission.loop_throttle import LoopThrottle
from server.admission.workers import Workers
from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.generation.observer import GenerationObserver, tell_finished
from server.generation.output_sequence import OutputSequence
from server.generation.prompts import PreparedPrompt, prepare, with_pictures
from server.media.picture_loader import PictureLoader
from server.protocol.errors import SERVER_ERROR, ApiError
from server.serving.load_progress import telling_of_load
from server.serving.residency import Residency
from server.serving.running_requests import RunningRequest, RunningRequests
from server.serving.served_model import ServedModel
from server.serving.tasks import refuse_generation
from server.structured_output.output_grammar import OutputGrammar
from server.telemetry.account_observer import AccountObserver
from server.telemetry.request_log import RequestLog
from server.telemetry.tracing import Tracing
from server.telemetry.usage_fields import UsageFields
from server.text.detokenizer import HasTokenTexts

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient, TokenStream

QUEUED_AT_ONCE = 16  # sequences of one request in one turn of the loop, for which all other streams wait

_USAGE_FIELDS = UsageFields()


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request with everything that its way to the engine needs besides the model."""

    request: GenerationRequest
    tenant: Tenant = ANYBODY
    request_ids: Sequence[str] = ()  # by which the tenant may cancel it
    observers: Sequence[GenerationObserver] = ()  # those of metrics, logs and traces are added here
    # Whether the client has been promised an answer before (a stream that is computed again): then the request waits
    # for a model however many others do.
    was_accepted: bool = False


class Submitter:
    """Submits the requests of one server."""

    def __init__(
        self,
        check_accepting: Callable[[], None],
        requests: RunningRequests,
        residency: Residency,
        budget: AdmissionBudget,
        throttle: LoopThrottle,
        workers: Workers,
        request_log: RequestLog | None,
        pictures: PictureLoader,
    ) -> None:
        """`check_accepting` raises if the server takes no requests."""
        self.tracing: Tracing | None = None
        self._check_accepting = check_accepting
        self._requests = requests
        self._residency = residency
        self._budget = budget
        self._throttle = throttle
        self._workers = workers
        self._request_log = request_log
        self._pictures = pictures
        self._loads: set[asyncio.Task[None]] = set()  # of models that requests wait for before they are queued

    @asynccontextmanager
    async def submit(self, model: ServedModel, submission: Submission) -> AsyncIterator[Generation]:
        """Submits a request to `model`. Whatever still runs when the context is left is aborted.

        A model that was never loaded is waited for; one that sleeps takes the request into its queue. Raises ApiError,
        InvalidParameter, QueueFull or EngineError.
        """
        request, tenant, ids = submission.request, submission.tenant, submission.request_ids
        observers: list[GenerationObserver] = [model.metrics, _USAGE_FIELDS, *submission.observers]
        account = None if tenant.account is None else AccountObserver(tenant.account)
        if account is not None:
            observers.append(account)
        generation = None
        try:
            if self.tracing is not None:
                observers.append(self.tracing.span(request, model.model_name, ids))
            self._check_accepting()  # before a model is loaded or woken for the request
            # Admit.
            if tenant is not ANYBODY:  # without keys any priority is allowed, and all clients share prefixes
                priority, cache_salt = tenant.check_priority(request.priority), tenant.cache_salt(request.cache_salt)
                request = replace(request, priority=priority, cache_salt=cache_salt)
            with (
                _streaming(tenant, request, is_owed=submission.was_accepted),
                self._requests.hold(tenant.salt, ids, is_background=tenant.is_background) as running,
                self._residency.use(model),
            ):
                if self._request_log is not None:
                    record = self._request_log.begin(ids, tenant.name, model.model_name)
                    observers.append(record)
                    await self._request_log.describe(record, request, self._workers)
                # Model. One that sleeps takes the request into its queue, unless its client is told how the load goes.
                if not model.is_open or (request.streaming.tells_progress and not model.is_in_memory):
                    request = await self._wait_for_load(model, request, submission, running)
                engine, _, structured_output, idle_sleep = model.opened
                text_model = model.text_model_of(request.model)
                refuse_generation(model)
                async with AsyncExitStack() as using:
                    using.enter_context(idle_sleep.use())
                    # Pictures, prompt, then grammar.
                    request = await with_pictures(request, text_model, self._pictures)
                    prompts = await prepare(request, text_model, engine, self._workers)
                    if account is not None:
                        account.reserve(
                            _most_tokens(request, prompts), is_owed=submission.was_accepted,
                            is_background=tenant.is_background,
                        )  # fmt: skip
                    rules: Sequence[OutputGrammar | None] = ()
                    if request.has_rules:
                        rules = await structured_output.rules_of(request, prompts, self._workers)
                    adapter = None
                    named = request.model if model.is_of_adapter(request.model) else None
                    chosen = model.adapters.choose(named, request.adapters)
                    if chosen is not None:
                        in_memory = _adapter(model, *chosen, request.timeout)
                        adapter = await using.enter_async_context(in_memory)
                    # Queue. Checked once more, because everything before may have taken long.
                    self._check_accepting()
                    with model.submitting():
                        num_aborts = model.num_aborts
                        # Two such requests at once could fill the queue with a part of each: both would be refused.
                        takes_turns = sum(len(prompt.params) for prompt in prompts) > QUEUED_AT_ONCE
                        async with model.submitting_many if takes_turns else nullcontext():
                            tokenizer = model.shown_tokenizer(request)
                            generation = await queue(
                                engine, request, prompts, rules, tokenizer, observers,
                                tenant=tenant.name, adapter=adapter,
                            )  # fmt: skip
                        model.add(generation)
                        if model.num_aborts != num_aborts:
                            generation.abort()
                    # Generation.
                    try:
                        async with generation:
                            running.begin(generation)
                            self._residency.ask_for(model)  # a load may have failed before the request was queued
                            yield generation
                    finally:
                        model.remove(generation)
        except BaseException as error:
            if generation is None:
                tell_finished(observers, None, error)
            raise

    def cancel_loads(self) -> None:
        """Refuses the requests that wait for a model that was never loaded; the server is draining."""
        for load in tuple(self._loads):
            load.cancel()

    async def _wait_for_load(
        self, model: ServedModel, request: GenerationRequest, submission: Submission, running: RunningRequest
    ) -> GenerationRequest:
        """Waits for a model that is not in memory; returns the request with the time left, or raises ApiError."""

        async def tell(progress: PromptProgress, index: int) -> None:
            for observer in submission.observers:
                await observer.progress(progress, index)

        self._check_accepting()  # from here on `cancel_loads` refuses it
        limits = model.settings.engine
        timeouts = [limit for limit in (request.timeout, limits.request_timeout) if limit is not None]
        waits = [limit for limit in (*timeouts, limits.queue_timeout) if limit is not None]
        clock = asyncio.get_running_loop().time
        began = clock()
        with nullcontext() if submission.was_accepted else self._budget.wait_for_load():
            load = asyncio.ensure_future(self._residency.arrival(model))
            running.on_cancel = load.cancel
            self._loads.add(load)
            load.add_done_callback(self._loads.discard)
            try:
                async with telling_of_load(model, self._residency, tell if request.streaming.tells_progress else None):
                    await asyncio.wait_for(load, min(waits, default=None))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the client has left
                self._check_accepting()
                raise ApiError(
                    f"the request was cancelled before the model {model.model_name} was loaded",
                    status=409,
                    code="cancelled",
                ) from None
            except TimeoutError:
                raise ApiError(
                    f"the model {model.model_name} was not loaded within the {min(waits):g} s that the request may "
                    "wait",
                    status=504,
                    error_type=SERVER_ERROR,
                    code="timeout",
                ) from None
        await self._throttle.next()  # all that have waited go on together
        if not timeouts:
            return request
        return replace(request, timeout=max(min(timeouts) - (clock() - began), 0.001))


@asynccontextmanager
async def _adapter(model: ServedModel, name: str, scale: float, seconds: float | None) -> AsyncIterator[AdapterChoice]:
    """The adapter of a request, which waits for it no longer than for the engine's queue; raises as `Adapters.use`."""
    limits = model.settings.engine
    waits = [limit for limit in (seconds, limits.request_timeout, limits.queue_timeout) if limit is not None]
    async with AsyncExitStack() as using:
        try:
            async with asyncio.timeout(min(waits, default=None)):
                adapter = await using.enter_async_context(
                    model.adapters.use(name, scale, max_waiting=limits.max_num_queued_requests)
                )
        except TimeoutError:
            raise ApiError(
                f"the adapter {name} was not in memory within the {min(waits):g} s that the request may wait",
                status=504,
                error_type=SERVER_ERROR,
                code="timeout",
            ) from None
        yield adapter


def _streaming(tenant: Tenant, request: GenerationRequest, *, is_owed: bool) -> AbstractContextManager[None]:
    """Counts the answers to a request among the streams of the tenant's key.

    Raises:
        ApiError: 429, with them more would run at once than may.
    """
    if tenant.account is None or tenant.is_background:  # batches have a limit of their own
        return nullcontext()
    return tenant.account.streams(len(request.prompts) * request.num_sampled, is_owed=is_owed)


def _most_tokens(request: GenerationRequest, prompts: Sequence[PreparedPrompt]) -> int:
    """The tokens that a request may take, as far as it limits them: without `max_tokens`, those of its prompts."""
    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    if request.max_tokens is not None or request.default_max_tokens is not None:
        num_tokens += sum(params.max_tokens for prompt in prompts for params in prompt.params)
    return num_tokens


async def queue(
    engine: EngineClient,
    request: GenerationRequest,
    prompts: Sequence[PreparedPrompt],
    rules: Sequence[OutputGrammar | None],
    tokenizer: HasTokenTexts,
    observers: Sequence[GenerationObserver] = (),
    *,
    tenant: str = "",
    adapter: AdapterChoice | None = None,
) -> Generation:
    """Queues one sequence for each answer to each prompt. If one is refused, all the others are aborted.

    It yields to the asyncio loop after each QUEUED_AT_ONCE sequences. Raises QueueFull or EngineError.
    """
    sequences: list[OutputSequence] = []
    streams: list[TokenStream] = []
    try:
        for prompt, rules_of_prompt in zip_longest(prompts, rules):
            for index, params in enumerate(prompt.params):
                if sequences and len(sequences) % QUEUED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                stream = engine.submit(
                    prompt.token_ids,
                    params,
                    priority=request.priority or 0,
                    cache_salt=request.cache_salt,
                    tenant=tenant,
                    timeout=request.timeout,
                    matcher=None if rules_of_prompt is None else rules_of_prompt.matcher(),
                    num_prompt_output_tokens=request.num_prompt_output_tokens,
                    # The other answers to the prompt share the progress of its first one.
                    wants_progress=request.streaming.tells_progress and index == 0,
                    pictures=prompt.pictures,
                    adapter=adapter,
                    is_checked=True,
                )
                streams.append(stream)
                sequences.append(OutputSequence(request, prompt, len(sequences), params, stream, tokenizer))
        return Generation(sequences, prompts, tokenizer, observers)
    except BaseException:
        for stream in streams:
            stream.abort()
        raise
