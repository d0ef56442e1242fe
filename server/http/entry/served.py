"""Request bodies, read and checked, and the models that an application serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from typing import Any, Protocol, TypeVar, runtime_checkable

from aiohttp import hdrs, web
from pydantic import ValidationError

from server.admission.admission_budget import Reservation
from server.admission.workers import Workers
from server.api.route import Call, checked
from server.http.entry.access_log import IGNORED
from server.http.transport.connections import TURNS
from server.http.transport.content_encoding import ENCODINGS, PLAIN, DecodedTooLarge, InvalidEncoding, decode
from server.http.transport.http_errors import undecodable, unsupported_encoding
from server.media.decoded_picture import DecodedPicture
from server.media.picture import Picture, refuse_too_many
from server.media.video import refuse_too_many_frames
from server.protocol.errors import ApiError, body_too_large, to_api_error
from server.protocol.json_limits import MAX_INLINE_BYTES, parse_json
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings

SERVED = web.AppKey("served", ServedModels)
SHARE = web.RequestKey("share", Reservation)  # of the budgets, as long as the request is being prepared


class HasIgnored(Protocol):
    """A parsed request body."""

    @property
    def ignored(self) -> Sequence[str]:
        """The names of the body's parameters that the server does not know and ignores."""


@runtime_checkable
class HasPictures(Protocol):
    """A parsed request body with a conversation."""

    @property
    def pictures(self) -> Sequence[Picture]:
        """The pictures of the conversation."""

    @property
    def model_name(self) -> str | None:
        """The name of the model that the client gave."""


Parsed = TypeVar("Parsed", bound=HasIgnored)


async def read_request(request: web.Request, parse: Callable[[Any], Parsed], preparing: ExitStack) -> Parsed:
    """Reads and parses the body of `request`; a large body is parsed in a worker thread.

    Args:
        parse: of the decoded body; raises ApiError, FieldError or ValidationError.
        preparing: holds the request's share of the budgets until it is closed.

    Raises:
        ApiError, FieldError: the server takes no requests, a budget is spent, or the body is refused.
    """
    served = request.app[SERVED]

    def receive() -> Reservation:
        share = request[SHARE] = preparing.enter_context(served.admission_budget.receive())
        return share

    served.check_accepting()  # before the body is read; once more before the request is queued, which may be long after
    body = await read_body(request, receive, served.settings, served.workers)
    request[SHARE].complete()
    if len(body) > MAX_INLINE_BYTES:
        decoded, asked = await served.workers.run_large(lambda: checked(lambda: _parse(body, parse)))
    else:
        try:
            decoded = parse_json(body)
            asked = parse(decoded)
        except ValidationError as error:
            raise to_api_error(error) from None
    if isinstance(asked, Call) and asked.request.streaming.is_resumable:
        asked.body = decoded  # it may have to be parsed again
    request[IGNORED] = ignored = ignored_in(asked, served)
    if ignored:
        served.ignored_parameters.tell(ignored)
    return asked


def ignored_in(asked: HasIgnored, served: ServedModels) -> Sequence[str]:
    """The names of all that is ignored of a body, pictures included if its model reads text alone."""
    pictures = asked.pictures if isinstance(asked, HasPictures) else ()
    if not isinstance(asked, HasPictures) or not pictures:
        return asked.ignored
    refuse_too_many(pictures)
    refuse_too_many_frames(pictures)
    if served.find(asked.model_name).sees:
        return asked.ignored
    return tuple(dict.fromkeys([*asked.ignored, *(picture.name for picture in pictures)]))


async def decode_pictures(
    pictures: Sequence[Picture], model: ServedModel, served: ServedModels
) -> Mapping[Picture, DecodedPicture]:
    """Pictures of a prompt that is only shown or counted; none where the model reads text alone.

    Raises ApiError or QueueFull.
    """
    form = model.text_model.pictures
    return {} if form is None or not pictures else await served.pictures.load(pictures, form)


def _parse(body: bytes, parse: Callable[[Any], Parsed]) -> tuple[Any, Parsed]:
    decoded = parse_json(body)
    return decoded, parse(decoded)


async def read_body(
    request: web.Request, receive: Callable[[], Reservation], settings: ServerSettings, workers: Workers
) -> bytes:
    """The decoded body, whatever content type it declares.

    Args:
        receive: called when its first bytes are there; gives what counts the bytes as they arrive.
        workers: one of their threads decodes a body that is encoded.

    Raises:
        ApiError: the body is empty, encoded in an unknown way, cannot be decoded, is too large or too slow, or the
            budget is spent.
    """
    most = settings.max_body_bytes
    encoding = ", ".join(request.headers.getall(hdrs.CONTENT_ENCODING, ())).strip().lower()
    if encoding not in PLAIN and encoding not in ENCODINGS:
        raise unsupported_encoding(encoding)
    if request.content_length is not None and request.content_length > most:
        raise body_too_large(most)
    body, share, has_arrived = bytearray(), None, request.content.is_eof()
    try:
        async with asyncio.timeout(settings.body_timeout):
            while chunk := await request.content.readany():
                share = receive() if share is None else share
                share.add(len(chunk))
                body += chunk
                if len(body) > most:
                    raise body_too_large(most)
    except TimeoutError as error:
        raise ApiError(
            f"the body did not arrive within {settings.body_timeout:g} s, the limit of this server",
            status=408,
            code="body_timeout",
            headers={"Connection": "close"},
        ) from error
    except web.RequestPayloadError as error:
        raise _ends_wrongly() from error
    if share is None:
        raise _is_empty()
    if not has_arrived:  # the ends of many bodies may come together
        await request.app[TURNS].next()
    if encoding in PLAIN:
        return bytes(body)
    try:
        decoded = await workers.run_large(decode, bytes(body), encoding, most)
    except InvalidEncoding:
        raise undecodable(encoding) from None
    except DecodedTooLarge:
        raise body_too_large(most) from None
    share.add(len(decoded))
    if not decoded:
        raise _is_empty()
    return decoded


def _is_empty() -> ApiError:
    return ApiError("the body is empty; it must be a JSON object", code="invalid_json")


def _ends_wrongly() -> ApiError:
    return ApiError(
        "the body does not end as its head says, or its chunks are not valid HTTP",
        code="invalid_http",
        headers={"Connection": "close"},
    )


@asynccontextmanager
async def in_memory(served: ServedModels, model: ServedModel) -> AsyncIterator[None]:
    """Waits until the model is loaded, and keeps it awake and in memory while the context lasts.

    Raises:
        ApiError: it cannot be loaded, or too many requests wait for such models.
    """
    with served.residency.use(model), nullcontext() if model.idle_sleep is None else model.idle_sleep.use():
        if not model.is_open:
            with served.admission_budget.wait_for_load():
                await served.residency.arrival(model)
            await served.turns.next()  # all that have waited go on together
        yield
