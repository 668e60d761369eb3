"""The client's side of one request, as the handler sees it: no HTTP library in sight."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.wire.base import Wire

BATCHED: Final = "batched"
"""The route of the requests of a batch, each of which is recorded."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that has arrived and whose wire format is known. `headers` has lower-case names.

    `arrived_s` is on the event loop's monotonic clock, `started_at_s` is epoch seconds on the
    gateway's clock: every TTL of this request counts from it. `path` includes the query, which
    `query` holds decoded; `resource_id` is the part of the path that names a resource. `tenant` is
    that of the request's key, or of the batch that the request is part of; None: of nobody known.
    """

    id: str
    route: str
    wire: Wire
    headers: Mapping[str, str]
    arrived_s: float
    started_at_s: float
    tenant: str | None = None
    path: str = ""
    resource_id: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def native_id(self) -> str:
        """The request's id in the provider's own form."""
        return self.wire.provider.native_id(self.id)

    @property
    def id_headers(self) -> dict[str, str]:
        """The headers by which the answer names the request: ours and the provider's."""
        return {"pcg-request-id": self.id, self.wire.provider.id_header: self.native_id}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Client(Protocol):
    """The receiver of the answer. Every method raises `ConnectionError` once the client has gone,
    or is cancelled."""

    async def read(self, max_nbytes: int) -> bytes:
        """The request's body, decoded. Raises `BodyTooLarge`, `BodyLate`, `InvalidRequest`, and
        what `hold` raises.

        The body, and what is decoded of it, count against the byte budget until the request is
        over.
        """
        ...

    def hold(self, nbytes: int) -> None:
        """Count so many bytes more of an answer that is collected. Raises `RateLimited`,
        `Overloaded` for want of room."""
        ...

    def hand_over(self) -> AbstractContextManager[object]:
        """The request's share of the byte budget, held until the end of the returned block.

        The request itself holds nothing from then on.
        """
        ...

    async def send(self, reply: Reply) -> None:
        """The whole answer, once; not after `open`. It leaves with `deliver`, and its end once the
        request is recorded."""
        ...

    async def deliver(self) -> None:
        """The client has taken a whole answer but for its end, or the answer is small. Outside any
        slot: it may take long."""
        ...

    async def open(self, headers: Mapping[str, str]) -> None:
        """Begin a streamed answer with status 200: the headers leave now."""
        ...

    async def write(self, data: bytes) -> None:
        """More of a streamed answer; waits while the client is slow to read."""
        ...
