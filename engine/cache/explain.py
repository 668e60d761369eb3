"""Why a plan read less than it could have.

Looks at the tree's and the entries' past; changes nothing.
"""

from __future__ import annotations

from typing import Final

from engine.cache.hit import HitResult
from engine.cache.lookup import PromptLookup
from engine.cache.tree.entries import EntryTable
from engine.cache.tree.radix import KnownPrefix
from engine.prompt.types import Level, Position
from engine.types import Miss, MissCause

CHANGED: Final[dict[Level, MissCause]] = {
    "tools": "tools_changed",
    "system": "system_changed",
    "messages": "messages_changed",
}


def refuse(view: PromptLookup) -> Miss | None:
    """Why nothing of the plan can be read, whatever is cached."""
    plan = view.plan
    if not plan.read:
        return Miss("no_cache" if plan.store else "no_store")
    if plan.any_prefix:
        return Miss("below_min") if view.limit < plan.min_tokens else None
    if not plan.readable:
        return Miss("not_marked")
    return None if _wanted(view) else Miss("below_min")


def is_best(view: PromptLookup, reading: HitResult) -> bool:
    """Whether nothing better could have been read: the first boundary tried, or every token that
    may be skipped."""
    if view.plan.any_prefix:
        return reading.offset >= view.limit
    return reading.position is not None and reading.position == _wanted(view)[0]


def explain(
    view: PromptLookup, entries: EntryTable, reading: HitResult, reach: KnownPrefix, *, lost: bool
) -> Miss | None:
    """The cause of a miss, or None where the prompt only went on after what is cached.

    Causes from the surest to the vaguest: a promise broken (`lost`: by a lower tier), an entry
    expired, one under another salt, a prompt that differs from what is known at one token. `token`
    is that token, or the boundary that was not read.
    """
    if reading.broken is not None:
        return Miss(
            "broken_promise" if lost else "evicted", reading.broken, view.offset(reading.broken)
        )
    missed = [
        position for position in _tried(view, reading) if view.offset(position) > reading.offset
    ]
    for position in missed:
        if entries.find(view.key(position)) is not None:
            return Miss("expired", position, view.offset(position))
    known = min(reach.num_tokens, view.limit)
    if view.plan.any_prefix and known > max(reading.skipped, view.rendered.preamble):
        return Miss("expired", _containing(view, reading.skipped), reading.skipped)
    for position in missed:
        offset = view.offset(position)
        if entries.at(view.keys.ancestor(offset), view.keys.tail(offset)):
            return Miss("parameters_changed", position, offset)
    return _divergence(view, entries, reading, reach)


def _divergence(
    view: PromptLookup, entries: EntryTable, reading: HitResult, reach: KnownPrefix
) -> Miss | None:
    """`<level>_changed` where the prompt leaves what is known of earlier ones; `cold` where it
    shares nothing with them.

    `template_clock` where it leaves them in the day that the template tells.
    """
    remembered = _remembered(view, entries)
    known = max(reach.num_tokens, remembered)
    forks = reach.forks or remembered > reach.num_tokens
    if forks and known in view.rendered.clock:
        return Miss("template_clock", token=known)
    if known > view.rendered.preamble and forks:
        position = _containing(view, known)
        if position is not None and (
            view.plan.any_prefix or position.order <= _wanted(view)[0].order
        ):
            return Miss(CHANGED[position.level], position, known)
    return None if reading.position is not None else Miss("cold")


def _wanted(view: PromptLookup) -> list[Position]:
    """Readable positions that are long enough, in the order they are tried."""
    least = max(view.plan.min_tokens, 1)
    return [position for position in view.plan.readable if view.offset(position) >= least]


def _tried(view: PromptLookup, reading: HitResult) -> list[Position]:
    """Those of them that were tried in vain."""
    wanted = _wanted(view)
    return (
        wanted[: wanted.index(reading.position)]
        if reading.entry is not None and reading.position
        else wanted
    )


def _containing(view: PromptLookup, token: int) -> Position | None:
    """The position that token `token` belongs to."""
    return next(
        (position for position, offset in view.rendered.offsets.items() if offset > token), None
    )


def _remembered(view: PromptLookup, entries: EntryTable) -> int:
    """The largest offset of a position where some entry stands or stood."""
    if not len(entries) and not entries.num_tombstones:
        return 0
    offsets = {view.offset(position) for position in view.rendered.offsets}
    there = (
        offset
        for offset in sorted(offsets, reverse=True)
        if entries.at(view.keys.ancestor(offset), view.keys.tail(offset))
    )
    return next(there, 0)
