"""Small bodies of Chat Completions to vary, and what the parser makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.openai import CHAT_WIRE

WIRE: Final = CHAT_WIRE
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
BREAKPOINT: Final = {"mode": "explicit"}


def body(**changes: Any) -> dict[str, Any]:
    """A minimal valid body; `...` removes a field."""
    fields: dict[str, Any] = {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}]}
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def turns(*messages: Any) -> dict[str, Any]:
    return body(messages=list(messages))


def user(*parts: Any) -> dict[str, Any]:
    return turns({"role": "user", "content": list(parts)})


def text(value: str = "x", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def function(**fields: Any) -> dict[str, Any]:
    return body(tools=[{"type": "function", "function": fields}])


def parse(fields: Any, headers: Mapping[str, str] = NO_HEADERS) -> Request:
    return WIRE.parse(orjson.dumps(fields), headers, request_id="req_1")


def refused(fields: Any) -> dict[str, Any]:
    """The `error` object of the 400."""
    with pytest.raises(InvalidRequest) as caught:
        parse(fields)
    reply = WIRE.encode_error(caught.value, request_id="req_1")
    assert reply.status == 400
    error = orjson.loads(reply.body)["error"]
    assert error["type"] == "invalid_request_error"
    return dict(error)


TOOL: Final = {"type": "function", "function": {"name": "f"}}
OTHER_TOOL: Final = {"type": "function", "function": {"name": "g"}}
THIRD_TOOL: Final = {"type": "function", "function": {"name": "h"}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
