"""The frames between gateway and engine, in both directions, and their encoding. Knows no sockets.

A frame is a little-endian uint32 length followed by that many bytes of MessagePack. The first frame
either side sends is `Hello`; the gateway refuses another `PROTOCOL_VERSION`.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, TypeAlias

import msgspec

from engine.prompt.numerals import from_msgpack, in_msgpack
from engine.prompt.types import Prompt
from engine.types import CachePlan, CacheReport, FinishReason, PinOutcome, Sampling, TokenLogprobs

PROTOCOL_VERSION: Final = 5
MAX_FRAME_NBYTES: Final = 64 * 1024 * 1024
LENGTH: Final = struct.Struct("<I")

FailureKind: TypeAlias = Literal[
    "overloaded", "context_exceeded", "bad_prompt", "bad_format", "bad_tools", "internal", "fatal"
]


class Capabilities(msgspec.Struct, frozen=True):
    """The abilities of the loaded model and template; part of `/v1/models`."""

    tools_first: bool
    exact: bool
    runner: str
    dtype: str
    device: str


# To the engine ------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Generate one answer. `started_at_s` (epoch seconds) is the request's TTL clock. `tenant` is
    hashed into every key."""

    request_id: str
    tenant: str
    prompt: Prompt
    plan: CachePlan
    sampling: Sampling
    started_at_s: float


class Count(msgspec.Struct, frozen=True, tag=True):
    """Count the tokens of a prompt exactly as `Submit` would render it, begun at that time."""

    request_id: str
    prompt: Prompt
    started_at_s: float = 0.0


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop a request; its prefilled blocks stay usable. Unknown ids are ignored. Answered by
    `Finished(cancelled)`."""

    request_id: str


class Tick(msgspec.Struct, frozen=True, tag=True):
    """The time, in epoch seconds. The engine's TTL time is the largest it has seen."""

    now_s: float


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Forget what is cached for `tenant`, or for everyone."""

    request_id: str
    tenant: str | None = None


class Pin(msgspec.Struct, frozen=True, tag=True):
    """Keep the live entry whose stored object has this key until it is unpinned (`pinned`
    False)."""

    request_id: str
    key: bytes
    pinned: bool = True


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """Ask for the engine's counters and gauges."""

    request_id: str


# From the engine ----------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First frame of the engine: the model is loaded and warm."""

    protocol_version: int
    model: str
    fingerprint: str
    context: int
    capabilities: Capabilities
    load_s: float


class Started(msgspec.Struct, frozen=True, tag=True):
    """Match and tier loads are settled, prefill begins: from here on the bill of the prompt is
    final."""

    request_id: str
    report: CacheReport
    render_s: float
    match_s: float
    queue_s: float


class TextDelta(msgspec.Struct, frozen=True, tag=True):
    """More of the answer. `text` never ends in half a character; `token_ids` are the tokens sampled
    since the last delta.

    `thinking` tells reasoning from the answer itself. `logprobs` is one per token, where they were
    asked for.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    thinking: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()


class ToolCallDelta(msgspec.Struct, frozen=True, tag=True):
    """More of the answer's tool call number `index`. The first delta of a call has its `name`,
    later ones None; the `arguments` of all deltas together are the text of one JSON object, as the
    model wrote it."""

    request_id: str
    index: int
    name: str | None
    arguments: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The last event of a request that started or was cancelled before it did."""

    request_id: str
    reason: FinishReason
    num_output: int
    stop: str | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The last event of a request the engine could not serve. `message` holds no prompt text.

    For `context_exceeded`, `num_prompt` and `limit` say by how much. `fatal` is the end of the
    whole engine.
    """

    request_id: str
    kind: FailureKind
    message: str
    num_prompt: int | None = None
    limit: int | None = None


class Counted(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    num_prompt: int


class Flushed(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    num_blocks: int


class Pinned(msgspec.Struct, frozen=True, tag=True):
    """The outcome of a `Pin`, and the KV under pinned entries now."""

    request_id: str
    outcome: PinOutcome
    used_nbytes: int
    budget_nbytes: int


class EngineStats(msgspec.Struct, frozen=True, tag=True):
    """Counters since start and gauges now; names are those of `pcg_engine_*` and `pcg_kv_*`
    metrics."""

    request_id: str
    counters: dict[str, float]
    gauges: dict[str, float]


ToEngine: TypeAlias = Submit | Count | Abort | Tick | Flush | Pin | Snapshot
FromEngine: TypeAlias = (
    Hello
    | Started
    | TextDelta
    | ToolCallDelta
    | Finished
    | Failed
    | Counted
    | Flushed
    | Pinned
    | EngineStats
)

_encoder = msgspec.msgpack.Encoder(enc_hook=in_msgpack)
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(
    ToEngine, ext_hook=from_msgpack
)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    """One frame, length included. Raises `ValueError` past the 64 MiB cap."""
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME_NBYTES:
        raise ValueError(f"frame of {len(payload)} bytes exceeds the cap of {MAX_FRAME_NBYTES}")
    return LENGTH.pack(len(payload)) + payload


def decode_to_engine(payload: bytes) -> ToEngine:
    """A frame's payload on the engine's side; raises `msgspec.DecodeError` or
    `msgspec.ValidationError`."""
    return _to_engine.decode(payload)


def decode_from_engine(payload: bytes) -> FromEngine:
    """A frame's payload on the gateway's side; raises `msgspec.DecodeError` or
    `msgspec.ValidationError`."""
    return _from_engine.decode(payload)
