"""What changed since an earlier request of the same conversation, as the API tells it.

Knows hashes, no text and no cache.

Source: anthropic 2.14 `types/diagnostics.py`, `cache_miss_*.py`; page "Cache diagnostics"
(2026-08). It compares requests, hit or not, and never fails one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from engine.prompt.types import LEVELS, Level, Prompt
from gateway.request import Request

NBYTES_PER_TOKEN: Final = 4
ORDER: Final[tuple[Level, ...]] = ("system", "tools", "messages")
"""Which level is told of where several have changed."""


class FingerprintPart(NamedTuple):
    """One tool, system block or message part: what it holds, hashed without its mark, and how long
    it is."""

    digest: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A request's structure. `settings` is what else may part two requests."""

    at_s: float
    model: str
    settings: str
    levels: dict[Level, tuple[FingerprintPart, ...]]

    @property
    def num_hashes(self) -> int:
        return sum(map(len, self.levels.values()))

    def nbytes_from(self, level: Level, index: int) -> int:
        """Bytes from a piece on, in the order tools, system, messages."""
        later = LEVELS[LEVELS.index(level) + 1 :]
        rest = [
            *self.levels[level][index:],
            *(piece for name in later for piece in self.levels[name]),
        ]
        return sum(piece.nbytes for piece in rest)


def settings_digest(settings: Any) -> str:
    """Equal for equal JSON values, whatever the order of their keys."""
    return hashlib.blake2b(
        msgspec.json.encode(settings, order="deterministic"), digest_size=16
    ).hexdigest()


def fingerprint(request: Request, settings: str) -> Fingerprint:
    """The fingerprint of a request as it is served: changes that the policy makes are not the
    client's."""
    return Fingerprint(
        at_s=request.started_at_s,
        model=f"{request.model} {request.parameters.get('speed', 'standard')}",
        settings=settings,
        levels=_pieces(request.prompt),
    )


def compare(before: Fingerprint, now: Fingerprint) -> dict[str, Any] | None:
    """The `cache_miss_reason`; None where the later request only goes on: its messages may be more,
    nothing else."""
    if before.model != now.model:
        return _reason("model_changed", now.nbytes_from("tools", 0))
    for level in ORDER:
        old, new = before.levels[level], now.levels[level]
        same = min(len(old), len(new))
        index = next((i for i in range(same) if old[i].digest != new[i].digest), same)
        if index < len(old) or (level != "messages" and index < len(new)):
            return _reason(f"{level}_changed", now.nbytes_from(level, index))
    return {"type": "unavailable"} if before.settings != now.settings else None


def _pieces(prompt: Prompt) -> dict[Level, tuple[FingerprintPart, ...]]:
    """Every position's content without its mark; a message's role is part of each of its parts."""
    messages = tuple(
        _piece([message.role, part], part.cache is not None)
        for message in prompt.messages
        for part in message.parts
    )
    return {
        "tools": tuple(_piece(tool, tool.cache is not None) for tool in prompt.tools),
        "system": tuple(_piece(block, block.cache is not None) for block in prompt.system),
        "messages": messages,
    }


def _piece(content: Any, marked: bool) -> FingerprintPart:
    if marked:
        content = _unmarked(content)
    encoded = msgspec.msgpack.encode(content)
    return FingerprintPart(hashlib.blake2b(encoded, digest_size=8).digest(), len(encoded))


def _unmarked(content: Any) -> Any:
    if isinstance(content, list):
        return [*content[:-1], _unmarked(content[-1])]
    return msgspec.structs.replace(content, cache=None)


def _reason(kind: str, nbytes: int) -> dict[str, Any]:
    return {"type": kind, "cache_missed_input_tokens": nbytes // NBYTES_PER_TOKEN}
