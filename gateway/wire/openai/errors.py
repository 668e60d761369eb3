"""Errors in OpenAI's shape and words.

Source: page "Error codes" (2026-09) and texts quoted in public issues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway import errors
from gateway.errors import BadFormat, BadPrompt, ContextExceeded, GatewayError, InvalidRequest
from gateway.wire.base import ErrorReply
from gateway.wire.failures import retry_headers, row_for
from gateway.wire.fields import FieldError, Path


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The shape of one class of errors. `code` is used where the error has none of its own."""

    status: int
    kind: str
    code: str | None = None


TABLE: Final[Mapping[type[GatewayError], ErrorRow]] = {
    GatewayError: ErrorRow(500, "server_error"),
    errors.InvalidRequest: ErrorRow(400, "invalid_request_error"),
    errors.ContextExceeded: ErrorRow(400, "invalid_request_error", "context_length_exceeded"),
    errors.Unauthenticated: ErrorRow(401, "invalid_request_error", "invalid_api_key"),
    errors.Forbidden: ErrorRow(403, "invalid_request_error"),
    errors.UnknownModel: ErrorRow(404, "invalid_request_error", "model_not_found"),
    errors.UnknownPath: ErrorRow(404, "invalid_request_error"),
    errors.MethodNotAllowed: ErrorRow(405, "invalid_request_error", "method_not_supported"),
    errors.BodyLate: ErrorRow(408, "invalid_request_error", "request_timeout"),
    errors.BodyTooLarge: ErrorRow(413, "invalid_request_error", "request_too_large"),
    errors.UnknownEncoding: ErrorRow(415, "invalid_request_error"),
    errors.RateLimited: ErrorRow(429, "requests", "rate_limit_exceeded"),
    errors.Overloaded: ErrorRow(503, "server_error", "server_is_overloaded"),
    errors.EngineFailed: ErrorRow(500, "server_error"),
    errors.UpstreamFailed: ErrorRow(502, "server_error"),
    errors.TimedOut: ErrorRow(504, "server_error", "timeout"),
}

FORMAT_PARAM: Final[Mapping[str, str]] = {"messages": "response_format", "input": "text.format"}
"""The field for the format of an answer, by the field for the prompt."""


def encode_error(
    error: GatewayError, *, request_id: str, input_field: str = "messages"
) -> ErrorReply:
    """The error as an HTTP answer. The request id travels in a header only."""
    body = error_body(error, input_field=input_field)
    return ErrorReply(status=row_for(TABLE, error).status, body=body, headers=retry_headers(error))


def error_body(error: GatewayError, *, input_field: str = "messages") -> bytes:
    """The JSON of an error, in an answer or in a stream: the nested form, which clients raise
    on."""
    return orjson.dumps({"error": error_fields(error, input_field=input_field)})


def error_fields(error: GatewayError, *, input_field: str = "messages") -> dict[str, Any]:
    """`message`, `type`, `param` and `code`. `input_field` is the field of the API at hand
    that holds the prompt."""
    row = row_for(TABLE, error)
    message, path = error.message, error.path
    if isinstance(error, ContextExceeded):
        path = input_field
        message = (
            f"This model's maximum context length is {error.limit} tokens. However, your messages "
            "resulted in "
            f"{error.num_prompt} tokens. Please reduce the length of the messages."
        )
        if input_field == "input":
            message = (
                "Your input exceeds the context window of this model. Please adjust your "
                "input and try again."
            )
    elif isinstance(error, BadPrompt):
        path = input_field
    elif isinstance(error, BadFormat):
        path = path or FORMAT_PARAM.get(input_field)
    return {"message": message, "type": row.kind, "param": path, "code": error.code or row.code}


def param(path: Path) -> str:
    """`messages[0].content[1].text`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def invalid(path: Path, message: str, code: str | None = None) -> InvalidRequest:
    """A 400 whose `param` is the path."""
    return InvalidRequest(message, path=param(path) or None, code=code)


def missing(path: Path) -> InvalidRequest:
    """A 400 for a required parameter that is not there."""
    message = f"Missing required parameter: '{param(path)}'."
    return invalid(path, message, "missing_required_parameter")


def empty_array(path: Path) -> InvalidRequest:
    """A 400 for an array that may not be empty."""
    message = (
        f"Invalid '{param(path)}': empty array. Expected an array with minimum length 1, but got "
        "an empty array instead."
    )
    return invalid(path, message, "empty_array")


def unsupported(path: Path) -> InvalidRequest:
    """A 400 for a parameter this gateway cannot serve."""
    message = f"Unsupported parameter: '{param(path)}' is not supported with this model."
    return invalid(path, message, "unsupported_parameter")


def unsupported_value(path: Path, value: str) -> InvalidRequest:
    """A 400 for a value this gateway cannot serve."""
    message = f"Unsupported value: '{param(path)}' does not support '{value}' with this model."
    return invalid(path, message, "unsupported_value")


def unsupported_effort(
    model: str, effort: str, supported: Sequence[str], *, field: str
) -> InvalidRequest:
    """A level of effort that the model does not have, in words quoted in public issues."""
    levels = ", ".join(f"'{level}'" for level in supported)
    message = (
        f"Unsupported value: '{effort}' is not supported with the '{model[:64]}' model. "
        f"Supported values are: {levels}."
    )
    return InvalidRequest(message, path=field, code="unsupported_value")


def from_field(error: FieldError) -> InvalidRequest:
    """A field reader's finding in OpenAI's words."""
    name = param(error.path)
    match error.problem:
        case "json":
            return invalid((), f"We could not parse the JSON body of your request: {error.got}")
        case "missing":
            return missing(error.path)
        case "type":
            message = (
                f"Invalid type for '{name or 'body'}': expected {_a(error.expected)}, but got "
                f"{_a(error.got)} instead."
            )
            return invalid(error.path, message, "invalid_type")
        case "too_small" | "too_large":
            return _out_of_range(error)
        case "choice":
            message = (
                f"Invalid value: '{error.got}'. Supported values are: {_listed(error.expected)}."
            )
            return invalid(error.path, message, "invalid_value")
    return invalid(
        error.path,
        f"Invalid '{name or 'body'}': nested more than {error.expected} levels deep.",
        "invalid_value",
    )


def _out_of_range(error: FieldError) -> InvalidRequest:
    kind, value = error.got
    kind = "integer" if kind == "integer" else "decimal"
    side, sign, edge = (
        ("below", ">=", "minimum") if error.problem == "too_small" else ("above", "<=", "maximum")
    )
    message = (
        f"Invalid '{param(error.path)}': {kind} {side} {edge} value. Expected a value {sign} "
        f"{error.expected:g}, "
        f"but got {value:g} instead."
    )
    return invalid(
        error.path, message, f"{kind}_{side}_{'min' if side == 'below' else 'max'}_value"
    )


def _a(kind: str) -> str:
    if kind == "null":
        return "null"
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def _listed(choices: Sequence[Any]) -> str:
    quoted = [f"'{choice}'" for choice in choices]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"
