"""The table of routes, and the guess which format a request speaks that no route takes.

Knows no HTTP library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.calls.exchange import Call, Client
from gateway.serve.handler import Handler
from gateway.wire.base import Wire

Serve: TypeAlias = Callable[[Call, Client], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table. `name` labels it in metrics and records; `{id}` in its path names a
    resource. `wire` is the format that it speaks; None: the one that the client's headers tell."""

    method: str
    path: str
    name: str
    serve: Serve
    wire: str | None = None


def provider_routes(handler: Handler, wires: Mapping[str, Wire]) -> Iterator[Route]:
    """A row for every endpoint of the formats, and for the list of models."""
    operations: dict[str, Serve] = {"generate": handler.generate, "count": handler.count}
    if handler.policy.backends:
        operations["forward"] = handler.proxied_only
    for name, wire in wires.items():
        for endpoint in wire.endpoints:
            if endpoint.operation in operations:
                serve = operations[endpoint.operation]
                yield Route("POST", endpoint.path, endpoint.name, serve, name)
    yield Route("GET", "/v1/models", "models", handler.models)
    yield Route("GET", "/v1/models/{id:.+}", "model", handler.model)


def guess_wire(wires: Mapping[str, Wire], path: str, headers: Mapping[str, str]) -> str:
    """The name of the format that a request most likely speaks: by its path, else by its lower-case
    header names, else the first format whose clients send no headers of their own."""

    def signs(name: str) -> tuple[bool, ...]:
        wire = wires[name]
        theirs = wire.provider.client_headers
        return (
            any(path == endpoint.path for endpoint in wire.endpoints),
            path.startswith(wire.prefixes),
            not theirs.isdisjoint(headers),
            not theirs,
        )

    return max(wires, key=signs)
