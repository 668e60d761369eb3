"""Errors in Anthropic's shape and words.

Source: page "Claude API errors" (2026-08); field texts as its validator has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway import errors
from gateway.errors import BadFormat, ContextExceeded, GatewayError, InvalidRequest
from gateway.wire.base import ErrorReply
from gateway.wire.failures import retry_headers, row_for
from gateway.wire.fields import FieldError, Path, clip

TABLE: Final[Mapping[type[GatewayError], tuple[int, str]]] = {
    GatewayError: (500, "api_error"),
    errors.InvalidRequest: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.Forbidden: (403, "permission_error"),
    errors.UnknownModel: (404, "not_found_error"),
    errors.UnknownPath: (404, "not_found_error"),
    errors.MethodNotAllowed: (405, "invalid_request_error"),
    errors.BodyLate: (408, "timeout_error"),
    errors.BodyTooLarge: (413, "request_too_large"),
    errors.UnknownEncoding: (400, "invalid_request_error"),
    errors.RateLimited: (429, "rate_limit_error"),
    errors.Overloaded: (529, "overloaded_error"),
    errors.EngineFailed: (500, "api_error"),
    errors.UpstreamFailed: (502, "api_error"),
    errors.TimedOut: (504, "timeout_error"),
}
"""HTTP status and `error.type`."""

FORMAT_PATH: Final = "output_config.format"
"""The path of the field that asks for the format of an answer."""

_TYPES: Final[Mapping[str, str]] = {
    "string": "Input should be a valid string",
    "integer": "Input should be a valid integer",
    "number": "Input should be a valid number",
    "boolean": "Input should be a valid boolean",
    "array": "Input should be a valid list",
    "object": "Input should be an object",
}


def encode_error(error: GatewayError, *, request_id: str) -> ErrorReply:
    """The error as an HTTP answer."""
    status, _ = row_for(TABLE, error)
    return ErrorReply(
        status=status, body=error_body(error, request_id=request_id), headers=retry_headers(error)
    )


def error_body(error: GatewayError, *, request_id: str) -> bytes:
    """The JSON of an error, in an answer or in a stream."""
    _, kind = row_for(TABLE, error)
    message = error.message
    path = error.path or (FORMAT_PATH if isinstance(error, BadFormat) else None)
    if isinstance(error, InvalidRequest) and not isinstance(error, ContextExceeded) and path:
        message = f"{path}: {message}"
    fields: dict[str, Any] = {"type": kind, "message": message}
    if error.code is not None:
        fields["details"] = {"error_code": error.code}
        if error.unsupported:
            fields["details"]["unsupported"] = error.unsupported
    return orjson.dumps({"type": "error", "error": fields, "request_id": request_id})


def invalid(path: Path, message: str) -> InvalidRequest:
    """A 400 that names the field: `messages.1.content.0.text`."""
    return InvalidRequest(message, path=".".join(map(str, path)) or None)


def from_field(error: FieldError) -> InvalidRequest:
    """A field reader's finding in Anthropic's words."""
    match error.problem:
        case "json":
            return invalid(error.path, f"The request body is not valid JSON: {error.got}")
        case "missing":
            return invalid(error.path, "Field required")
        case "type":
            return invalid(error.path, _TYPES[error.expected])
        case "too_small":
            return invalid(
                error.path, f"Input should be greater than or equal to {error.expected:g}"
            )
        case "too_large":
            return invalid(error.path, f"Input should be less than or equal to {error.expected:g}")
        case "choice":
            return invalid(error.path, f"Input should be {one_of(error.expected)}")
    return invalid(error.path, f"Input is nested more than {error.expected} levels deep")


def unknown_tag(path: Path, tag: str, expected: Sequence[str]) -> InvalidRequest:
    """A `type` that names nothing the API knows."""
    tags = ", ".join(f"'{name}'" for name in expected)
    message = (
        f"Input tag '{clip(tag)}' found using 'type' does not match any of the expected "
        f"tags: {tags}"
    )
    return invalid(path, message)


def unsupported_effort(model: str, effort: str, supported: Sequence[str]) -> InvalidRequest:
    """A level of effort that the model does not have, in the API's recorded words."""
    levels = ", ".join(sorted(supported))
    return InvalidRequest(
        f"This model does not support effort level '{effort}'. Supported levels: {levels}."
    )


def one_of(choices: Sequence[Any]) -> str:
    """`'a', 'b' or 'c'`."""
    quoted = [f"'{choice}'" for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
