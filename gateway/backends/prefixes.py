"""The beginning of a prompt as hashes of ever longer prefixes.

They tell which engine has computed most of the prompt before.

Pure; knows no tokens, no engines and no provider. Cache marks are no part of a hash, as they move
from turn to turn. Two prompts with a hash in common begin with the same content; whether an engine
still has it is the engine's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from engine.prompt.numerals import in_json
from engine.prompt.types import Position, Prompt, unmarked
from gateway.request import Request

DIGEST_NBYTES: Final = 16

SLICE_NBYTES: Final = 4096
"""A part of a prompt that is longer is hashed in slices: questions about one document differ after
it, within one part."""

MAX_PREFIXES: Final = 64
"""Of one prompt: the shortest, which many prompts share, and the longest."""

Where: TypeAlias = Literal["inside", "marked", "head", "messages"]
"""The place where a prefix ends.

`inside` and `marked`: within the tools and system text, and at a cache mark there. `head`: at their
end. `messages`: in the conversation.
"""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `nbytes` of a prompt, more or less. `promised`: a planned entry ends in it."""

    digest: bytes
    nbytes: int
    promised: bool


@dataclass(frozen=True, slots=True)
class PrefixTrace:
    """A prompt by its prefixes, the shortest first. `home` stands for what it has in common with
    its like: the client's own routing key, else the first prefix that may be cached by itself."""

    prefixes: tuple[Prefix, ...]
    home: bytes

    @property
    def digests(self) -> tuple[bytes, ...]:
        """All digests that the engine holds after it has served the prompt."""
        return (self.home, *(prefix.digest for prefix in self.prefixes))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of the prompt's content in wire order, and where it ends."""

    content: bytes
    position: Position
    where: Where


def trace_prefixes(request: Request) -> PrefixTrace:
    """The request's prompt, within its tenant. Prefixes too short to be cached are left out; the
    last one never is."""
    found: list[tuple[Prefix, Where]] = []
    running = hashlib.blake2b(request.tenant.encode() + b"\0", digest_size=DIGEST_NBYTES)
    nbytes, planned = (
        0,
        min((entry.position.order for entry in request.plan.writable), default=None),
    )
    for piece in _pieces(request.prompt):
        for start in range(0, len(piece.content), SLICE_NBYTES):
            content = piece.content[start : start + SLICE_NBYTES]
            running.update(content)
            nbytes += len(content)
            ends = start + SLICE_NBYTES >= len(piece.content)
            where: Where = piece.where if ends or piece.where == "messages" else "inside"
            promised = planned is not None and (
                piece.position.order > planned or (ends and piece.position.order == planned)
            )
            found.append((Prefix(running.digest(), nbytes, promised), where))
    long = [each for each in found if each[0].nbytes >= request.plan.min_tokens] or found[-1:]
    home = next((prefix.digest for prefix, where in long if where != "inside"), running.digest())
    prefixes = [prefix for prefix, _ in long]
    return PrefixTrace(
        (*prefixes[:1], *prefixes[1:][1 - MAX_PREFIXES :]), request.routing_key or home
    )


def _pieces(prompt: Prompt) -> Iterator[_Piece]:
    """The prompt's content, without what a template puts around it."""
    head_ends = len(prompt.tools) + len(prompt.system)
    for i, (position, part) in enumerate(prompt.parts()):
        role = prompt.role_at(position)
        if role is not None and (raw := prompt.raw) is not None:
            content = raw.encode() if isinstance(raw, str) else msgspec.msgpack.encode(raw)
            yield _Piece(content, position, "messages")
            return
        encoded = msgspec.json.encode(unmarked(part), enc_hook=in_json)
        if role is None:
            yield _Piece(encoded, position, _where(i + 1 == head_ends, part.cache is not None))
        else:
            opening = b"" if position.part else role.encode() + b"\0"
            yield _Piece(opening + encoded, position, "messages")


def _where(ends: bool, marked: bool) -> Where:
    return "head" if ends else "marked" if marked else "inside"
