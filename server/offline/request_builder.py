"""Turns the arguments of a Python call into the request that an HTTP client would have sent."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias

from pydantic import ValidationError

from sampling.host.params import InvalidParameter, SamplingParams
from server.api.openai.chat import ChatCall
from server.api.openai.completions import CompletionCall
from server.api.route import BodyCall
from server.generation.generation_request import GenerationRequest
from server.offline.batch import Job
from server.offline.pictures import picture_on_the_wire
from server.offline.sampling_params import SamplingParams as GivenParams
from server.protocol.errors import ApiError, FieldError, UnknownField, shorten, to_api_error

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams]  # one for all prompts, or one each
Options: TypeAlias = Mapping[str, Any]  # wire name: value

# Of the wire's parameters, those that say nothing to a caller in the same process.
_WIRE_ONLY = frozenset(
    {
        "include_metrics",
        "model",
        "request_id",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "stream",
        "stream_options",
        "user",
    }
)


class Prepare(Protocol):
    """Tokenizes and checks a request of one prompt; `base` holds where the request says nothing."""

    def __call__(self, request: GenerationRequest, base: SamplingParams | None) -> Job: ...


class RequestBuilder(NamedTuple):
    """Builds the requests of one of the two tasks: completions or chat."""

    parse: Callable[[Any], BodyCall]  # of the route that does the same over HTTP
    field: str  # wire name of the parameter with the prompt or the messages
    plural: str  # the name of a list of them, for messages of errors
    to_wire: Callable[[Any], Any]

    def prepare_one(
        self,
        start: object,
        params: SamplingParams | None,
        options: Options,
        prepare: Prepare,
        *,
        is_streamed: bool = False,
    ) -> Job:
        """The checked request for one answer; `params` hold where `options` say nothing. Raises InvalidParameter."""
        for name in sorted(_WIRE_ONLY.intersection(options)):
            raise InvalidParameter(name, f"{name} is a parameter of the HTTP API alone")
        is_silent = params is None or (isinstance(params, GivenParams) and "max_tokens" not in params.given)
        length = {} if params is None or is_silent else {"max_tokens": params.max_tokens}
        body = {**length, **options, "stream": is_streamed, self.field: self.to_wire(start)}
        with as_invalid_parameter(self.field):
            call = self.parse(body)
            for name in options.keys() & set(call.ignored):  # the caller can correct the call
                raise UnknownField(name)
            return prepare(call.request, params)

    def prepare_many(
        self, starts: Iterable[object], params: Params | None, options: Options, prepare: Prepare
    ) -> list[Job]:
        """The checked requests for several answers; raises InvalidParameter that names a rejected one by its index."""
        starts = list(starts)
        each = [params] * len(starts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(starts):
            raise InvalidParameter("params", f"params has {len(each)} entries for {len(starts)} {self.plural}")
        jobs = []
        for index, (start, own) in enumerate(zip(starts, each, strict=True)):
            try:
                jobs.append(self.prepare_one(start, own, options, prepare))
            except InvalidParameter as error:
                raise InvalidParameter(error.param, f"{self.plural}[{index}]: {error}") from None
        return jobs


def is_one_prompt(prompts: object) -> bool:
    """Whether it is a text or a list of token ids, and not a list of either; raises InvalidParameter for others."""
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Iterable):
        raise InvalidParameter(
            "prompt",
            f"prompt is {shorten(repr(prompts))}; it must be a text, a list of token ids, or a list of either, as in "
            'llm.generate("Once upon a time")',
        )
    return isinstance(prompts, str) or (
        isinstance(prompts, Sequence) and len(prompts) > 0 and all(isinstance(item, int) for item in prompts)
    )


def is_one_conversation(messages: object) -> bool:
    """Whether it is a list of messages, and not a list of such lists; raises InvalidParameter for others."""
    check_conversations(messages)
    return isinstance(messages, Sequence) and len(messages) > 0 and isinstance(messages[0], Mapping)


def check_conversations(messages: object) -> None:
    """Raises InvalidParameter where it is neither a list of messages nor one of such lists."""
    if isinstance(messages, str | bytes | bytearray | Mapping) or not isinstance(messages, Iterable):
        text = messages if isinstance(messages, str) else "Hello"
        raise InvalidParameter(
            "messages",
            f"messages is {shorten(messages)}; it must be a list of messages, as in "
            f'llm.chat([{{"role": "user", "content": {shorten(text)}}}])',
        )


@contextmanager
def as_invalid_parameter(field: str) -> Iterator[None]:
    """Turns every rejection of a request into InvalidParameter; `field` where it names no parameter."""
    try:
        yield
    except InvalidParameter:
        raise
    except (ApiError, FieldError, ValidationError) as error:
        refusal = to_api_error(error)
        raise InvalidParameter(refusal.param or field, refusal.message) from None
    except ValueError as error:  # a text that is no Unicode
        raise InvalidParameter(field, str(error)) from None


def _prompts_on_the_wire(prompt: object) -> list[object]:
    """A list of one, so that a list of texts is not taken for several prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, Sequence):
        return [list(prompt)]
    raise InvalidParameter("prompt", f"prompt is {shorten(prompt)}; it must be a text or a list of token ids")


def _messages_on_the_wire(messages: object) -> object:
    """A list, because the wire's arrays are lists, and no other sequences; pictures become data URLs."""
    if not isinstance(messages, Sequence):
        return messages
    return [
        {**message, "content": list(map(picture_on_the_wire, message["content"]))}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


COMPLETE = RequestBuilder(CompletionCall.parse, "prompt", "prompts", _prompts_on_the_wire)
CHAT = RequestBuilder(ChatCall.parse, "messages", "messages", _messages_on_the_wire)
