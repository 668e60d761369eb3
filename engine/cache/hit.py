"""The decision what counts as a hit: the entries that a prompt's plan finds.

Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.cache.tree.entries import Entry, EntryTable
from engine.cache.tree.prompt import PlannedPrompt
from engine.prompt.types import Position
from engine.types import Boundary, CachePlan, PlannedEntry


@dataclass(frozen=True, slots=True)
class HitResult:
    """The boundary that is read, within the `skipped` tokens; without one `position` is None.

    `entry` is the one that was read, None where any prefix may be. `broken` is the readable
    position with the largest live offset past the skipped tokens: a promise that was not kept.
    """

    skipped: int
    position: Position | None = None
    offset: int = 0
    entry: Entry | None = None
    broken: Position | None = None


def find_hit(
    prompt: PlannedPrompt,
    entries: EntryTable,
    skipped: int,
    now_s: float,
    readable: int | None = None,
) -> HitResult:
    """The first readable position with a live entry whose KV is there, or the longest prefix where
    any may be read.

    Nothing past `readable` tokens is read: fewer than `skipped` where the rest is billed as
    written.
    """
    readable = skipped if readable is None else readable
    plan = prompt.plan
    if not plan.read:
        return HitResult(skipped)
    broken: Position | None = None
    for position in plan.readable if len(entries) else ():
        offset = prompt.offset(position)
        if offset < max(plan.min_tokens, 1):
            continue
        entry = entries.find_live(prompt.key(position), now_s)
        if entry is None or is_too_old(entry, plan, now_s):
            continue
        if offset <= readable:
            if plan.any_prefix and plan.max_read_age_s is None:
                break
            return HitResult(skipped, position, offset, entry, broken)
        if offset > skipped and (broken is None or offset > prompt.offset(broken)):
            broken = position
    if plan.any_prefix and plan.max_read_age_s is None and readable >= max(plan.min_tokens, 1):
        return HitResult(skipped, last_position(prompt, readable), readable, None, broken)
    return HitResult(skipped, broken=broken)


def is_too_old(entry: Entry, plan: CachePlan, now_s: float) -> bool:
    """Whether the entry is older than the request accepts."""
    return plan.max_read_age_s is not None and entry.written_at_s < now_s - plan.max_read_age_s


def live_offsets(prompt: PlannedPrompt, entries: EntryTable, now_s: float) -> list[int]:
    """The ends of the live entries that the plan may read, in the order to try."""
    if not len(entries):
        return []
    least = max(prompt.plan.min_tokens, 1)
    return [
        prompt.offset(position)
        for position in prompt.plan.readable
        if prompt.offset(position) >= least
        and entries.find_live(prompt.key(position), now_s) is not None
    ]


def last_position(prompt: PlannedPrompt, num_tokens: int) -> Position | None:
    """The last position that ends within the first `num_tokens` tokens, or the first that begins
    there."""
    last: Position | None = None
    for position, offset in prompt.rendered.offsets.items():
        if last is not None and offset > num_tokens:
            break
        last = position
    return last


def writes(prompt: PlannedPrompt) -> tuple[PlannedEntry, ...]:
    """The planned entries that may exist: at least `min_tokens` tokens, at least one."""
    if not prompt.plan.store:
        return ()
    least = max(prompt.plan.min_tokens, 1)
    return tuple(
        planned for planned in prompt.plan.writable if prompt.offset(planned.position) >= least
    )


def boundaries(
    prompt: PlannedPrompt,
    planned: tuple[PlannedEntry, ...],
    entries: EntryTable,
    now_s: float,
    skipped: int,
) -> tuple[Boundary, ...]:
    """Each of `writes(prompt)` as it was found."""
    found = []
    for entry in planned:
        offset = prompt.offset(entry.position)
        existed = (
            offset <= skipped
            and len(entries) > 0
            and entries.find_live(prompt.key(entry.position), now_s) is not None
        )
        found.append(Boundary(entry.position, offset, entry.ttl_s, existed))
    return tuple(found)


def live_entries(
    prompt: PlannedPrompt, entries: EntryTable, num_tokens: int, now_s: float
) -> Iterator[Entry]:
    """The live entries at the prompt's positions within its first `num_tokens` tokens, under the
    plan's salts."""
    if not len(entries):
        return
    for position in prompt.rendered.offsets:
        offset = prompt.offset(position)
        if offset > num_tokens:
            return
        entry = entries.find_live(prompt.key(position), now_s) if offset else None
        if entry is not None:
            yield entry
