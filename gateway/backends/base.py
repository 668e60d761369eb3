"""The contracts of places that answer: backends that generate from a `Request`,
upstreams that are passed bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from engine.messages import Finished, Started, TextDelta, ToolCallDelta
from engine.prompt.types import Prompt
from gateway.models import ModelInfo
from gateway.request import Request

Event: TypeAlias = Started | TextDelta | ToolCallDelta | Finished


class Backend(Protocol):
    """Generates answers. Called on the event loop only; never blocks it."""

    def generate(self, request: Request) -> AsyncIterator[Event]:
        """`Started`, then `TextDelta`s and `ToolCallDelta`s, then `Finished`.

        Raises a `gateway.errors.GatewayError` leaf at any point (`Overloaded`, `ContextExceeded`,
        `BadPrompt`, `EngineFailed`). Closing the iterator early (`aclose`, cancellation) aborts the
        work within a step.
        """
        ...

    async def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt, exactly as `generate` would render it."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a request would be served now."""
        ...

    @property
    def model(self) -> ModelInfo | None:
        """The model served; None until it is loaded once."""
        ...


@runtime_checkable
class HasWorkers(Protocol):
    """A backend that hands its requests to others."""

    @property
    def workers(self) -> Sequence[Backend]: ...


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One of the backends that do the work for a model. `number` tells it from the others."""

    model: str
    number: int
    backend: Backend


def workers_of(backends: Mapping[str, Backend]) -> list[WorkerInfo]:
    """The workers of each model: those that its backend hands requests to, else the backend."""
    return [
        WorkerInfo(model, number, worker)
        for model, backend in backends.items()
        for number, worker in enumerate(
            backend.workers if isinstance(backend, HasWorkers) else (backend,)
        )
    ]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as an upstream is to get it. `path` is the client's, with its query; `headers` has
    lower-case names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of an upstream's answer. `headers` has lower-case names."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of an upstream's answer, which is whole."""


class Upstream(Protocol):
    """Serves requests of its own wire format. Called on the event loop only."""

    def exchange(self, outgoing: Outgoing) -> AsyncIterator[Head | bytes | Tail]:
        """`Head`, then the body in pieces as they come, then `Tail`. Errors of the upstream's own
        are answers too.

        Raises `Overloaded`, `UpstreamFailed` or `TimedOut` at any point. Closing the iterator early
        (`aclose`, cancellation) closes the connection at once. Nothing is ever sent twice.
        """
        ...
