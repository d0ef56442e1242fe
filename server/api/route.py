"""What a generating route is: one object with everything that is specific to the route."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import orjson
from pydantic import ValidationError

from engine.interface.types import PromptProgress
from server.api.framing import SERVER_SENT_EVENTS, Framing
from server.generation.answers import Answer
from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.generation.output_sequence import Delta
from server.media.picture import Picture
from server.output_parsers.output_parser import OutputFormat
from server.protocol.errors import ApiError, to_api_error
from server.text.detokenizer import HasTokenTexts

Writer = TypeVar("Writer", bound="StreamWriter")
Result = TypeVar("Result")

# An error, and the id of its HTTP request, as the JSON object that a route's clients expect.
ErrorShape: TypeAlias = Callable[[ApiError, str], dict[str, Any]]


class AnswerContext(NamedTuple):
    """What a writer has to know beside the request and its generation."""

    framing: Framing
    request_id: str  # the client's own, or the server's
    model: str  # the name that clients know it by
    tokenizer: HasTokenTexts
    answer_format: OutputFormat = OutputFormat()  # how the model writes what is not content, where that is known
    stream: str | None = None  # by which id the stream can be resumed, if it can


class StreamWriter(ABC):
    """Encodes one generation as the events of a stream, delta by delta, each event in the route's framing."""

    def begin(self) -> list[bytes]:
        """The events before the first delta."""
        return []

    @abstractmethod
    def encode(self, deltas: Sequence[Delta]) -> list[bytes]:
        """The events of `deltas`."""

    @abstractmethod
    def end(self) -> list[bytes]:
        """The events behind the last delta; there is at least one."""


class AnswerWriter(StreamWriter):
    """Writes one generation as a stream, or whole."""

    is_slow = False  # whether `to_dict` may take so long that it should have a thread of its own

    @abstractmethod
    def to_dict(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The whole body, to be encoded as JSON. The generation has been read to its end."""


def checked(parse: Callable[[], Result]) -> Result:
    """The result of `parse`; raises ApiError, also for what pydantic finds, in the thread that checks."""
    try:
        return parse()
    except ValidationError as error:
        raise to_api_error(error) from None


@dataclass
class Call(ABC, Generic[Writer]):
    """One call of a route: the request that its body asks for, and how the answer is written."""

    request: GenerationRequest
    request_id: str | None  # the client's own name for it
    ignored: Sequence[str]  # the parameters of the body that mean nothing to this server
    body: Any = field(init=False, default=None)  # decoded, where the request may have to be parsed again

    @property
    def model_name(self) -> str | None:
        """The name of the model that the client gave."""
        return self.request.model

    @property
    def pictures(self) -> Sequence[Picture]:
        """The pictures of all prompts."""
        return tuple(picture for prompt in self.request.prompts for picture in prompt.pictures)

    @abstractmethod
    def make_writer(self, generation: Generation, context: AnswerContext) -> Writer:
        """The writer of the answer that `generation` gives."""

    @abstractmethod
    def encode_progress(
        self, progress: PromptProgress, index: int, framing: Framing, request_id: str, model: str
    ) -> bytes:
        """An event or message on how the answer of this index waits for its first token, by a model's client name.

        It may come before there is a generation. A resumable stream does not keep it: nothing that follows builds on
        it.
        """


@dataclass
class BodyCall(Call[AnswerWriter]):
    """A call that is answered by a stream or by one JSON body."""

    is_streamed: bool


@dataclass(frozen=True, slots=True)
class BodyRoute:
    """A route whose calls are POST requests with a JSON body."""

    path: str
    parse: Callable[[Any], BodyCall]  # raises ApiError or ValidationError: the decoded body is not a valid request
    shape_error: ErrorShape
    framing: Framing = SERVER_SENT_EVENTS  # of its streams
    # An error as a stream's last event, made of what `shape_error` gets; None: its shape, framed.
    encode_error: Callable[[ApiError, str], bytes] | None = None

    def encode_error_event(self, error: ApiError, request_id: str) -> bytes:
        """An error as it stands at the end of a stream."""
        if self.encode_error is not None:
            return self.encode_error(error, request_id)
        return self.framing.frame(orjson.dumps(self.shape_error(error, request_id)))


class Resume(NamedTuple):
    """A message that asks for the rest of a resumable stream."""

    id: str  # the client's own; unique among what runs on its socket
    stream: str
    after: str | None  # the place of the last message that the client has; None: it has none


class Generate(NamedTuple):
    """A message that asks for an answer. The body is checked when the route parses it."""

    id: str  # the client's own; unique among what runs on its socket
    body: dict[str, Any]


class Cancel(NamedTuple):
    """A message that ends a generation early."""

    id: str


class Refusal(NamedTuple):
    """A message that makes no sense."""

    id: str | None  # None where the message does not even have one
    error: ApiError


@dataclass(frozen=True, slots=True)
class MessageRoute:
    """A route whose calls are messages on a WebSocket, many of them at once on one socket; each is streamed."""

    path: str
    # From a message and the most bytes that it may have.
    read: Callable[[str, int], Generate | Cancel | Resume | Refusal]
    parse: Callable[[Generate], Call[StreamWriter]]  # raises what parse of BodyRoute raises
    encode_error: Callable[[str | None, ApiError], bytes]  # as a message about this id
    shape_error: ErrorShape  # before the socket is open
    # A message of a resumable stream for the reader who calls it by another id, with the place that it stands at: from
    # the message, the id in it, the reader's id and the place, if the message has one. None: the route has
    # no resumable streams.
    readdress: Callable[[bytes, str, str, bytes | None], bytes] | None = None


Route: TypeAlias = BodyRoute | MessageRoute
