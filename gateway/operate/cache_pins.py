"""Pins, as operators ask for them:
from the first digits of a key in the listing to the engine that has the entry.

Knows the listing and the engines; knows no HTTP and no blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import msgspec

from engine.messages import Pinned
from gateway.operate.inventory import EntryLine

MIN_DIGITS: Final = 4
SHOWN_DIGITS: Final = 12
"""Of a key, where one is shown to people."""


class PinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /admin/cache/pin` and `unpin`: the first digits of a key of `GET
    /admin/cache/entries`."""

    key: str


class PinDone(msgspec.Struct, frozen=True):
    """Its answer: the whole key, and the bytes that pinned entries take and may take, in the
    engines that have this one."""

    key: str
    used_nbytes: int
    budget_nbytes: int


@runtime_checkable
class CanPin(Protocol):
    """A backend whose entries can be pinned."""

    def pin(self, key: bytes, *, pinned: bool) -> Awaitable[Pinned]: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why nothing was changed, as an HTTP status and for people."""

    status: int
    title: str
    detail: str


def find_entry(lines: Iterable[EntryLine], digits: str) -> EntryLine | Refusal:
    """The one live entry whose key begins so. The same entry in several tiers is one."""
    wanted = digits.lower()
    if len(wanted) < MIN_DIGITS or not set(wanted) <= set("0123456789abcdef"):
        return Refusal(
            400,
            "InvalidRequest",
            f"a key is given by {MIN_DIGITS} or more of its hexadecimal digits",
        )
    found = {
        line.stored_key: line
        for line in lines
        if line.key.startswith(wanted) and line.ttl_left_s > 0
    }
    if not found:
        return Refusal(
            404,
            "UnknownEntry",
            f"no live entry has a key that begins with {wanted}; see `pcg cache ls`",
        )
    if len(found) > 1:
        return Refusal(
            409,
            "AmbiguousKey",
            f"{len(found)} entries have keys that begin with {wanted}: give more digits",
        )
    return next(iter(found.values()))


async def set_pinned(
    line: EntryLine, backends: Iterable[object], *, pinned: bool
) -> PinDone | Refusal:
    """Pin or unpin an entry in every engine that has it. Raises `GatewayError` when one does not
    answer."""
    answers = [
        await backend.pin(line.stored_key, pinned=pinned)
        for backend in backends
        if isinstance(backend, CanPin)
    ]
    done = [answer for answer in answers if answer.outcome == "done"]
    if done:
        return PinDone(
            line.key,
            sum(each.used_nbytes for each in done),
            sum(each.budget_nbytes for each in done),
        )
    for answer in answers:
        if answer.outcome == "over_budget":
            used = (
                f"{answer.used_nbytes} of {answer.budget_nbytes} bytes are taken (eviction.pinned)"
            )
            return Refusal(409, "OverBudget", f"pinned entries may not take so much: {used}")
    absent = any(answer.outcome == "absent" for answer in answers)
    word = "is not on the device now" if absent else "was not read since the engine started"
    return Refusal(
        409, "NotOnDevice", f"the entry {word}: send a request that reads it, then try again"
    )
