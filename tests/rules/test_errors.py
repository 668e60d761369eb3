"""Every error has a status and a body in every wire format, whoever raises it."""

from __future__ import annotations

import inspect
import json
import re
from types import ModuleType
from typing import get_args

import pytest

import engine.errors
import gateway.errors
from engine.errors import EngineError, ModelError
from engine.messages import Failed, FailureKind
from gateway.backends.mailbox import as_gateway_error
from gateway.errors import ContextExceeded, GatewayError
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Wire
from gateway.wire.openai import CHAT_WIRE

WIRES: tuple[Wire, ...] = (MESSAGES_WIRE, CHAT_WIRE)


def classes(module: ModuleType, base: type[Exception]) -> list[type[Exception]]:
    """The error classes a module defines, in its order."""
    return [
        item for _, item in inspect.getmembers(module, inspect.isclass) if issubclass(item, base)
    ]


def leaves(module: ModuleType, base: type[Exception]) -> list[type[Exception]]:
    """The classes that someone may raise: all but the roots of the tree that have no situation of
    their own."""
    return [item for item in classes(module, base) if item not in (base, ModelError)]


def example(error: type[Exception]) -> GatewayError:
    """One instance of a gateway error."""
    return ContextExceeded(9000, 8192) if error is ContextExceeded else error("what happened")  # type: ignore[return-value]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider.name)
@pytest.mark.parametrize(
    "error", leaves(gateway.errors, GatewayError), ids=lambda error: error.__name__
)
def test_every_gateway_error_has_a_reply(error: type[Exception], wire: Wire) -> None:
    """The reply is a 4xx or 5xx as drawn in the tree of the module, with a JSON body that says what
    happened."""
    reply = wire.encode_error(example(error), request_id="req-1")
    tree = gateway.errors.__doc__ or ""
    line = next(line for line in tree.splitlines() if f" {error.__name__} " in line)
    assert str(reply.status) in line
    reply_text = json.dumps(json.loads(reply.body))
    assert all(
        word in reply_text
        for word in (("9000", "8192") if error is ContextExceeded else (example(error).message,))
    )


@pytest.mark.parametrize("package", ["engine", "gateway"])
def test_the_trees_are_drawn(package: str) -> None:
    """Each `errors.py` draws all of its classes at the top."""
    module, base = (
        (engine.errors, EngineError) if package == "engine" else (gateway.errors, GatewayError)
    )
    assert [
        item.__name__
        for item in classes(module, base)
        if item.__name__ not in (module.__doc__ or "")
    ] == []


def failure_kind(error: type[Exception]) -> str:
    """`ContextExceeded` -> `context_exceeded`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", error.__name__).lower()


def test_every_engine_error_of_a_request_crosses_the_socket() -> None:
    """Errors that say something about one request are kinds of `Failed`; those about the model end
    the start."""
    of_requests = [
        error for error in leaves(engine.errors, EngineError) if not issubclass(error, ModelError)
    ]
    assert {failure_kind(error) for error in of_requests} | {"internal", "fatal"} == set(
        get_args(FailureKind)
    )


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider.name)
@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_every_failure_of_the_engine_has_a_reply(kind: FailureKind, wire: Wire) -> None:
    """What the engine reports reaches the client as an error of its format: its own fault is 4xx,
    ours 5xx."""
    reply = wire.encode_error(
        as_gateway_error(Failed("req-1", kind, "what happened", num_prompt=9000, limit=8192)),
        request_id="req-1",
    )
    assert reply.status // 100 == (
        4 if kind in ("context_exceeded", "bad_prompt", "bad_format", "bad_tools") else 5
    )
    assert json.loads(reply.body)["error"]
