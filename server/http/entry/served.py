"""Where handlers find the models that their application serves, and how they take in what a body asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from typing import Any, Protocol, TypeVar

from aiohttp import web

from server.admission.admission_budget import Share
from server.api.route import checked
from server.http.entry.access_log import IGNORED
from server.http.transport.json_body import read_body
from server.protocol.json_limits import MAX_INLINE_BYTES, parse_json
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels

SERVED = web.AppKey("served", ServedModels)
SHARE = web.RequestKey("share", Share)  # of the budgets, as long as the request is being prepared


class HasIgnored(Protocol):
    """What a body was parsed to."""

    @property
    def ignored(self) -> Sequence[str]:
        """The parameters of the body that mean nothing to this server."""


Asked = TypeVar("Asked", bound=HasIgnored)


async def read_asked(request: web.Request, parse: Callable[[Any], Asked], preparing: ExitStack) -> Asked:
    """What the body of `request` asks for; a large one is parsed in a worker thread.

    Args:
        parse: of the decoded body; raises ApiError, FieldError or ValidationError.
        preparing: holds the request's share of the budgets until it is closed.

    Raises:
        ApiError, FieldError: the server takes no requests, a budget is spent, or the body is refused.
    """
    served = request.app[SERVED]
    served.check_accepting()
    share = request[SHARE] = preparing.enter_context(served.admission_budget.receive())
    body = await read_body(request, share, served.settings)
    share.complete()

    def work() -> Asked:
        return checked(lambda: parse(parse_json(body)))

    asked = await served.workers.run_large(work) if len(body) > MAX_INLINE_BYTES else work()
    served.ignored_parameters.tell(asked.ignored)
    request[IGNORED] = asked.ignored
    return asked


@asynccontextmanager
async def in_memory(served: ServedModels, model: ServedModel) -> AsyncIterator[None]:
    """Waits until the model is loaded; while the context lasts, it is not put to sleep or out of memory for another.

    Raises:
        ApiError: it cannot be loaded, or too many requests wait for such models.
    """
    with served.residency.use(model), nullcontext() if model.idle_sleep is None else model.idle_sleep.use():
        if not model.is_open:
            with served.admission_budget.wait_for_load():
                await served.residency.arrival(model)
            await served.turns.next()  # all that have waited go on together
        yield
