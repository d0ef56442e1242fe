"""API errors independent of their JSON shape, and the conversion of any exception to one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Self

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engine.interface.context_overflow import ContextOverflow
from engine.interface.types import DeadEnd, EngineError, QueueFull
from sampling.host.params import InvalidParameter

MAX_PARAM_CHARS = 128
MAX_SHOWN_VALUE = 80  # characters of an offending value that a message repeats
MAX_SHOWN_MODELS = 20  # names that a message lists
RETRY_AFTER_S = 1

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
EXCEED_CONTEXT_SIZE = "exceed_context_size_error"  # llama.cpp's type of the same
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # OpenAI's code, by which clients know to shorten the prompt

# What pydantic's error types ask of a value, as the end of the sentence "<param> is <value>; it must be …".
_DEMANDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of 64 bits",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


# The folders of an absolute path; not those of a URL.
_FOLDERS = re.compile(r"(?<![\w:/.~-])/(?:[^/\s'\"]+/)*(?=[^/\s'\"])")


def without_folders(text: str) -> str:
    """`text` with the names of files alone in the place of absolute paths, which are no business of clients."""
    return _FOLDERS.sub("", text)


class ApiError(Exception):
    """An error for the client, with its HTTP status."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        error_type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            message = without_folders(message)
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = error_type
        self.param = param if param is None else param[:MAX_PARAM_CHARS]  # it may be whatever key a client made up
        self.code = code
        self.headers = dict(headers or {})

    def without_traces(self) -> Self:
        """This error without traceback and causes, so that it can be stored.

        The frames of a traceback keep the variables of their functions alive, and so may keep each other alive.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class ContextLengthExceeded(ApiError):
    """400, for a request that does not fit into the model's context; each API has words of its own for it."""

    def __init__(self, overflow: ContextOverflow) -> None:
        super().__init__(str(overflow), param=overflow.param, code=CONTEXT_LENGTH_EXCEEDED)
        self.limit = overflow.limit
        self.num_tokens = overflow.num_tokens
        self.max_tokens = overflow.max_tokens


class FieldError(ValueError):
    """An error about one field of a part of a body, raised where only the field's name is known and not its path."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def at(self, path: str) -> ApiError:
        """The error for the client, about the field at `path`."""
        raise NotImplementedError


class UnknownField(FieldError):
    """A name that the body does not have.

    Args:
        meant: the name that the client most likely meant.
    """

    def __init__(self, name: str, meant: str | None = None) -> None:
        super().__init__(name)
        self.meant = meant

    def at(self, path: str) -> ApiError:
        hint = "" if self.meant is None else f"; did you mean {shorten(self.meant)}?"
        return ApiError(f"unknown parameter {shorten(path)}{hint}", param=path, code="unknown_parameter")


class UnsupportedField(FieldError):
    """A known name with a value that this server does not support."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__(name)
        self.value = value

    def at(self, path: str) -> ApiError:
        return ApiError(
            f"{path} is {shorten(self.value)}; it is not supported by this server",
            param=path,
            code="unsupported_parameter",
        )


def shorten(value: object) -> str:
    """`value` as JSON, cut to a length that fits in a sentence."""
    if isinstance(value, str):
        # A megabyte of text is not encoded for the sake of its beginning; headers may hold bytes that are no UTF-8.
        value = value[: MAX_SHOWN_VALUE + 1].encode("utf-8", "replace").decode()
    elif isinstance(value, list | dict) and len(value) > MAX_SHOWN_VALUE:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} entries"
    try:
        text = orjson.dumps(value, default=str).decode()
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
        return f"{'a list' if isinstance(value, list) else 'an object'} nested too deeply"
    return text if len(text) <= MAX_SHOWN_VALUE else text[: MAX_SHOWN_VALUE - 1] + "…"


def invalid_value(message: str, param: str | None) -> ApiError:
    """400, for a parameter whose value, alone or beside others, is not allowed."""
    return ApiError(message, param=param, code="invalid_value")


def body_too_large(max_bytes: int) -> ApiError:
    return ApiError(
        f"the request body is larger than {max_bytes} bytes, the limit of this server",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="body_too_large",
    )


def invalid_json(error: orjson.JSONDecodeError, what: str = "body") -> ApiError:
    return ApiError(f"the {what} is not valid JSON: {error}", code="invalid_json")


def model_not_found(name: str, served: Sequence[str]) -> ApiError:
    shown = ", ".join(map(shorten, served[:MAX_SHOWN_MODELS]))
    more = f" and {len(served) - MAX_SHOWN_MODELS} more" if len(served) > MAX_SHOWN_MODELS else ""
    return ApiError(
        f"the model {shorten(name)} does not exist; this server has {shown}{more}",
        status=HTTPStatus.NOT_FOUND,
        param="model",
        code="model_not_found",
    )


def unavailable(message: str, code: str) -> ApiError:
    """503, for a server that is loading, draining or failed; the client shall open another connection."""
    return ApiError(
        message,
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        error_type=SERVER_ERROR,
        code=code,
        headers={"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
    )


def to_api_error(error: Exception) -> ApiError:
    """The client's view of any exception; the details of an unexpected one are only logged."""
    match error:
        case ApiError():
            return error
        case ContextOverflow():
            return ContextLengthExceeded(error)
        case InvalidParameter():
            return invalid_value(str(error), error.param)
        case QueueFull():
            return ApiError(
                str(error) or "the queue is full; try again later",
                status=HTTPStatus.TOO_MANY_REQUESTS,
                error_type="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        case DeadEnd():
            return ApiError(str(error), code="dead_end")
        case EngineError():
            return unavailable(str(error) or "the engine has failed", "engine_failed")
        case FieldError():
            return error.at(error.name)
        case ValidationError():
            return _from_validation(error.errors(include_url=False)[0])
        case orjson.JSONDecodeError():
            return invalid_json(error)
    return ApiError(
        "the server failed to handle this request",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        error_type=SERVER_ERROR,
        code="internal_error",
    )


def _from_validation(details: ErrorDetails) -> ApiError:
    param = _param_path(details["loc"])
    value = shorten(details["input"])
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return UnknownField(param).at(param)
        case "missing":
            return ApiError(f"{param} is required", param=param, code="missing_required_parameter")
        case "value_error":
            if isinstance(context["error"], FieldError):
                return context["error"].at(_param_path((*details["loc"], context["error"].name)))
            return invalid_value(str(context["error"]), param or None)
        case "greater_than_equal":
            demand = f"at least {context['ge']}"
        case "less_than_equal":
            demand = f"at most {context['le']}"
        case "literal_error":
            demand = f"one of {context['expected']}"
        case kind if kind in _DEMANDS:
            demand = _DEMANDS[kind]
        case _:
            return invalid_value(f"{param} is {value}: {details['msg']}", param)
    if not param:
        return ApiError(f"the body is {value}; it must be {demand}", code="invalid_type")
    return invalid_value(f"{param} is {value}; it must be {demand}", param)


def _param_path(loc: tuple[int | str, ...]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`. The tag of a union's member, `<message>`, is not part of it."""
    path = ""
    for part in loc:
        if isinstance(part, str) and part.startswith("<"):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
