"""The first change since an earlier request of the same conversation, as the API reports it.

Knows hashes, no text and no cache.

Source: anthropic 2.14 `types/diagnostics.py`, `cache_miss_*.py`; page "Cache diagnostics"
(2026-08). It compares requests, hit or not, and never fails one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from engine.prompt.numerals import in_json, in_msgpack
from engine.prompt.types import LEVELS, Level, Prompt, num_common, unmarked
from gateway.request import Request

NBYTES_PER_TOKEN: Final = 4
ORDER: Final[tuple[Level, ...]] = ("system", "tools", "messages")
"""The level that is reported where several have changed: the first of these."""


class FingerprintPart(NamedTuple):
    """One tool, system block or message part: the hash of its content without its mark, and the
    length of that content."""

    digest: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A request's structure. `settings` is a digest of all else that may part two requests."""

    at_s: float
    model: str
    settings: str
    levels: dict[Level, tuple[FingerprintPart, ...]]

    @property
    def num_hashes(self) -> int:
        return sum(map(len, self.levels.values()))

    def nbytes_from(self, level: Level, index: int) -> int:
        """Bytes from a part on, in the order tools, system, messages."""
        later = LEVELS[LEVELS.index(level) + 1 :]
        rest = chain(self.levels[level][index:], *(self.levels[name] for name in later))
        return sum(part.nbytes for part in rest)


def settings_digest(settings: Any) -> str:
    """Equal for equal JSON values, whatever the order of their keys."""
    return hashlib.blake2b(
        msgspec.json.encode(settings, enc_hook=in_json, order="deterministic"), digest_size=16
    ).hexdigest()


def fingerprint(request: Request, settings: str) -> Fingerprint:
    """The fingerprint of a request as it is served: changes that the policy makes are not the
    client's."""
    return Fingerprint(
        at_s=request.started_at_s,
        model=f"{request.model} {request.parameters.get('speed', 'standard')}",
        settings=settings,
        levels=_fingerprint_parts(request.prompt),
    )


def compare(before: Fingerprint, now: Fingerprint) -> dict[str, Any] | None:
    """The `cache_miss_reason`; None where the later request only goes on: its messages may be more,
    nothing else."""
    if before.model != now.model:
        return _reason("model_changed", now.nbytes_from("tools", 0))
    for level in ORDER:
        old, new = before.levels[level], now.levels[level]
        index = num_common([part.digest for part in old], [part.digest for part in new])
        if index < len(old) or (level != "messages" and index < len(new)):
            return _reason(f"{level}_changed", now.nbytes_from(level, index))
    return {"type": "unavailable"} if before.settings != now.settings else None


def _fingerprint_parts(prompt: Prompt) -> dict[Level, tuple[FingerprintPart, ...]]:
    """Every position's content without its mark; a message's role is part of each of its parts."""
    found: dict[Level, list[FingerprintPart]] = {level: [] for level in LEVELS}
    for position, part in prompt.parts():
        role, bare = prompt.role_at(position), unmarked(part)
        encoded = msgspec.msgpack.encode(
            bare if role is None else [role, bare], enc_hook=in_msgpack
        )
        digest = hashlib.blake2b(encoded, digest_size=8).digest()
        found[position.level].append(FingerprintPart(digest, len(encoded)))
    return {level: tuple(parts) for level, parts in found.items()}


def _reason(kind: str, nbytes: int) -> dict[str, Any]:
    return {"type": kind, "cache_missed_input_tokens": nbytes // NBYTES_PER_TOKEN}
