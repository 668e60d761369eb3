"""The events of one request that came from the engine and are not read yet.

Knows no sockets and no processes.

A slow reader costs no unbounded memory: consecutive text deltas that wait are joined, so a mailbox
holds at most the one answer it is for, in a handful of items, and a stalled client never holds up
the frames of another.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from engine.messages import (
    Counted,
    EngineStats,
    Failed,
    Finished,
    Flushed,
    Pinned,
    Started,
    TextDelta,
    ToolCallDelta,
)
from gateway.errors import (
    BadFormat,
    BadPrompt,
    ContextExceeded,
    EngineFailed,
    EngineLost,
    GatewayError,
    Overloaded,
)

Reply = (
    Started
    | TextDelta
    | ToolCallDelta
    | Finished
    | Failed
    | Counted
    | Flushed
    | Pinned
    | EngineStats
)

RETRY_AFTER_S = 1.0


class EventMailbox:
    """One writer (the link's reader) and one reader (the request's coroutine), both on the event
    loop."""

    def __init__(self) -> None:
        self._waiting: deque[Reply] = deque()
        self._closed: str | None = None
        self._arrived = asyncio.Event()

    def put(self, reply: Reply) -> None:
        """Deliver one frame; never blocks and never raises."""
        last = self._waiting[-1] if self._waiting else None
        joined = _joined(last, reply)
        if joined is not None:
            self._waiting[-1] = joined
        else:
            self._waiting.append(reply)
        self._arrived.set()

    def close(self, reason: str) -> None:
        """Nothing more will come: once what waits is read, `get` raises `EngineLost(reason)`."""
        self._closed = reason
        self._arrived.set()

    async def get(self) -> Reply:
        """The next frame, in order.

        Raises the failure that the engine reported, as the gateway's error.
        """
        while not self._waiting:
            if self._closed is not None:
                raise EngineLost(self._closed, retry_after_s=RETRY_AFTER_S)
            self._arrived.clear()
            await self._arrived.wait()
        reply = self._waiting.popleft()
        if isinstance(reply, Failed):
            raise as_gateway_error(reply)
        return reply


def as_gateway_error(failure: Failed) -> GatewayError:
    """The gateway's error for a failure of the engine."""
    match failure.kind:
        case "overloaded":
            return Overloaded(failure.message, retry_after_s=RETRY_AFTER_S)
        case "context_exceeded":
            return ContextExceeded(failure.num_prompt or 0, failure.limit or 0)
        case "bad_prompt":
            return BadPrompt(failure.message, path="messages")
        case "bad_format":
            return BadFormat(failure.message)
        case "bad_tools":
            return BadFormat(failure.message, path="tools")
        case "internal":
            return EngineFailed(failure.message)
        case "fatal":
            return EngineLost(failure.message, retry_after_s=RETRY_AFTER_S)


def _joined(last: Reply | None, reply: Reply) -> Reply | None:
    """One delta that says what two say; None where they are of different kinds."""
    match last, reply:
        case (TextDelta(), TextDelta()) if last.thinking == reply.thinking:
            return msgspec.structs.replace(
                reply,
                text=last.text + reply.text,
                token_ids=last.token_ids + reply.token_ids,
                logprobs=last.logprobs + reply.logprobs,
            )
        case (ToolCallDelta(), ToolCallDelta()) if last.index == reply.index:
            return msgspec.structs.replace(
                last,
                arguments=last.arguments + reply.arguments,
                token_ids=last.token_ids + reply.token_ids,
                logprobs=last.logprobs + reply.logprobs,
            )
        case _:
            return None
