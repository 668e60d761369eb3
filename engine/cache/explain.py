"""The cause of a miss: the reason why a plan read less than it could have.

Looks at the past of the tree and the entries; changes nothing.
"""

from __future__ import annotations

from typing import Final

from engine.cache.hit import HitResult
from engine.cache.tree.entries import EntryTable
from engine.cache.tree.prompt import PlannedPrompt
from engine.cache.tree.radix import KnownPrefix
from engine.prompt.types import Level, Position
from engine.types import Miss, MissCause

CHANGED: Final[dict[Level, MissCause]] = {
    "tools": "tools_changed",
    "system": "system_changed",
    "messages": "messages_changed",
}


def refuse(prompt: PlannedPrompt) -> Miss | None:
    """The reason why nothing can be read under the plan, whatever is cached; None if there is
    none."""
    plan = prompt.plan
    if not plan.read:
        return Miss("no_cache" if plan.store else "no_store")
    if plan.any_prefix:
        return Miss("below_min") if prompt.limit < plan.min_tokens else None
    if not plan.readable:
        return Miss("not_marked")
    return None if _wanted(prompt) else Miss("below_min")


def is_best(prompt: PlannedPrompt, hit: HitResult) -> bool:
    """Whether nothing better could have been read: the first boundary tried, or every token that
    may be skipped."""
    if prompt.plan.any_prefix:
        return hit.offset >= prompt.limit
    return hit.position is not None and hit.position == _wanted(prompt)[0]


def explain(
    prompt: PlannedPrompt, entries: EntryTable, hit: HitResult, reach: KnownPrefix, *, lost: bool
) -> Miss | None:
    """The cause of a miss, or None where the prompt only continues a cached one.

    Causes from the surest to the vaguest: a promise broken (`lost`: by a lower tier), an entry
    expired, one under another salt, a prompt that differs from the known ones at one token. `token`
    is that token, or the boundary that was not read.
    """
    if hit.broken is not None:
        return Miss("broken_promise" if lost else "evicted", hit.broken, prompt.offset(hit.broken))
    missed = [position for position in _tried(prompt, hit) if prompt.offset(position) > hit.offset]
    for position in missed:
        if entries.find(prompt.key(position)) is not None:
            return Miss("expired", position, prompt.offset(position))
    known = min(reach.num_tokens, prompt.limit)
    if prompt.plan.any_prefix and known > max(hit.skipped, prompt.rendered.preamble):
        return Miss("expired", _containing(prompt, hit.skipped), hit.skipped)
    for position in missed:
        offset = prompt.offset(position)
        if entries.at(prompt.keys.ancestor(offset), prompt.keys.tail(offset)):
            return Miss("parameters_changed", position, offset)
    return _divergence(prompt, entries, hit, reach)


def _divergence(
    prompt: PlannedPrompt, entries: EntryTable, hit: HitResult, reach: KnownPrefix
) -> Miss | None:
    """`<level>_changed` where the prompt differs from earlier ones; `cold` where it shares nothing
    with them.

    `template_clock` where the first difference is the day that the template prints.
    """
    remembered = _remembered(prompt, entries)
    known = max(reach.num_tokens, remembered)
    forks = reach.forks or remembered > reach.num_tokens
    if forks and known in prompt.rendered.clock:
        return Miss("template_clock", token=known)
    if known > prompt.rendered.preamble and forks:
        position = _containing(prompt, known)
        if position is not None and (
            prompt.plan.any_prefix or position.order <= _wanted(prompt)[0].order
        ):
            return Miss(CHANGED[position.level], position, known)
    return None if hit.position is not None else Miss("cold")


def _wanted(prompt: PlannedPrompt) -> list[Position]:
    """Readable positions that are long enough, in the order they are tried."""
    least = max(prompt.plan.min_tokens, 1)
    return [position for position in prompt.plan.readable if prompt.offset(position) >= least]


def _tried(prompt: PlannedPrompt, hit: HitResult) -> list[Position]:
    """The wanted positions that were tried in vain."""
    wanted = _wanted(prompt)
    return (
        wanted[: wanted.index(hit.position)] if hit.entry is not None and hit.position else wanted
    )


def _containing(prompt: PlannedPrompt, token: int) -> Position | None:
    """The position that token `token` belongs to."""
    return next(
        (position for position, offset in prompt.rendered.offsets.items() if offset > token), None
    )


def _remembered(prompt: PlannedPrompt, entries: EntryTable) -> int:
    """The largest offset of a position where some entry stands or stood."""
    if not len(entries) and not entries.num_tombstones:
        return 0
    offsets = {prompt.offset(position) for position in prompt.rendered.offsets}
    there = (
        offset
        for offset in sorted(offsets, reverse=True)
        if entries.at(prompt.keys.ancestor(offset), prompt.keys.tail(offset))
    )
    return next(there, 0)
