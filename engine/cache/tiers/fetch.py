"""What one request may get from below the device, and the choice of what to read.

Data and arithmetic; talks to no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from engine.cache.tiers.client import TierClient
from engine.cache.tiers.object_format import ObjectKey, span_key, stored_entry_key, tail_key
from engine.cache.tiers.pieces import SpanRead
from engine.cache.tree.block import Block
from engine.cache.tree.geometry import Geometry, cut
from engine.cache.tree.prompt import PlannedPrompt
from engine.cache.tree.tenant import TenantCache
from engine.prompt.types import Position

MAX_PLACES: Final = 64
"""Positions of one prompt at which entries are looked for: those the plan names first, then the
last ones."""

Cause: TypeAlias = Literal["late", "corrupt"]


@dataclass(frozen=True, slots=True, repr=False)
class UnknownEntry:
    """A position whose entry is not known here: `key` and `ancestor`, `tail` as in `Entry`; `label`
    of the stored object."""

    key: bytes
    ancestor: bytes
    tail: bytes
    position: Position
    offset: int
    label: ObjectKey


@dataclass(slots=True, eq=False, repr=False)
class Fetch:
    """One request's reads from the lower tiers, from `seek` until its pages are on the device or it
    is abandoned.

    `last` was the prompt's last full block on the device when the fetch began, `num_matched` the
    tokens found there. `pieces` are what is being read, in token order and without a gap; those
    with a body have arrived. `cause` is why the pieces end sooner than they should have.
    """

    space: TenantCache
    view: PlannedPrompt
    now_s: float
    last: Block
    num_matched: int
    spans: list[SpanRead] = field(default_factory=list)
    tails: dict[int, SpanRead] = field(default_factory=dict)
    places: tuple[UnknownEntry, ...] = ()
    unanswered: list[TierClient] = field(default_factory=list)
    pieces: list[SpanRead] = field(default_factory=list)
    num_missing: int = 0
    is_chosen: bool = False
    is_over: bool = False
    is_queued: bool = False
    """Waiting for room to read into."""
    cause: Cause | None = None
    progress_s: float = 0.0
    deadline_s: float = float("inf")
    wasted_s: float = 0.0
    staged_nbytes: int = 0

    @property
    def is_outrun(self) -> bool:
        """Whether the device has lost what it held of the prompt, so that the pieces may not join
        it any more."""
        return self.last.parent is None and self.last is not self.space.root

    def arrived(self, at: int) -> Iterator[SpanRead]:
        """The pieces that continue a device match of `at` tokens, up to the first gap."""
        for piece in self.pieces:
            if piece.body is None or piece.start > at:
                return
            if piece.end > at:
                at = piece.end
                yield piece


def look_for(fetch: Fetch, geometry: Geometry, knows: Callable[[bytes], bool]) -> None:
    """Fill in what the tiers are to be asked: spans past the device's, and places whose entries
    `knows` doesn't know."""
    view, seal, span = fetch.view, fetch.space.seal, geometry.span_tokens
    first = geometry.border(min(fetch.num_matched, view.num_prompt))
    for start in range(first, view.num_prompt - span + 1, span):
        label = ObjectKey(
            span_key(seal, view.keys.ancestor(start + span)), cut(view.ids, start, start + span)
        )
        fetch.spans.append(SpanRead(label, start, start + span))
    places: dict[bytes, UnknownEntry] = {}
    for position in _positions(view):
        offset = view.offset(position)
        if not offset:
            continue
        ancestor, tail = view.keys.ancestor(offset), view.keys.tail(offset)
        start = geometry.border(offset)
        if offset > max(start, fetch.num_matched) and offset not in fetch.tails:
            label = ObjectKey(tail_key(seal, ancestor, tail), cut(view.ids, start, offset))
            fetch.tails[offset] = SpanRead(label, start, offset)
        key = view.key(position)
        if key not in places and not knows(key):
            places[key] = UnknownEntry(
                key, ancestor, tail, position, offset, ObjectKey(stored_entry_key(seal, key), tail)
            )
    fetch.places = tuple(places.values())


def choose(
    fetch: Fetch,
    geometry: Geometry,
    is_live: Callable[[Position], bool],
    is_worth: Callable[[SpanRead], bool],
) -> list[SpanRead]:
    """The pieces to read, in token order: all that the entry to be read needs, and beyond it what
    is worth its time."""
    chain = list(_contiguous(fetch.spans))
    chain_end = (
        chain[-1].end if chain else geometry.border(min(fetch.num_matched, fetch.view.num_prompt))
    )
    live = _reachable(fetch, geometry, is_live, chain_end)
    promised = _promised(fetch, live)
    chosen: list[SpanRead] = []
    for piece in chain:
        if piece.start >= promised and not is_worth(piece):
            break
        chosen.append(piece)
    end = (
        chosen[-1].end if chosen else geometry.border(min(fetch.num_matched, fetch.view.num_prompt))
    )
    ends = [
        offset
        for offset in live.values()
        if max(end, fetch.num_matched) < offset < end + geometry.span_tokens
    ]
    for offset in sorted(ends, reverse=True):
        tail = fetch.tails.get(offset)
        if (
            tail is not None
            and tail.start == end
            and tail.is_there
            and (offset <= promised or is_worth(tail))
        ):
            return [*chosen, tail]
    return chosen


def _contiguous(pieces: list[SpanRead]) -> Iterator[SpanRead]:
    for piece in pieces:
        if not piece.is_there:
            return
        yield piece


def _reachable(
    fetch: Fetch, geometry: Geometry, is_live: Callable[[Position], bool], chain_end: int
) -> dict[Position, int]:
    """Positions with a live entry whose KV can all be had."""
    live: dict[Position, int] = {}
    for position in _positions(fetch.view):
        offset = fetch.view.offset(position)
        if not offset or not is_live(position):
            continue
        tail = fetch.tails.get(offset)
        at_hand = offset <= max(chain_end, fetch.num_matched)
        if at_hand or (geometry.border(offset) <= chain_end and tail is not None and tail.is_there):
            live[position] = offset
    return live


def _promised(fetch: Fetch, live: dict[Position, int]) -> int:
    """The tokens of the entry that will be read."""
    plan = fetch.view.plan
    if plan.any_prefix:
        return max(live.values(), default=0)
    least = max(plan.min_tokens, 1)
    return next((live[position] for position in plan.readable if live.get(position, 0) >= least), 0)


def _positions(view: PlannedPrompt) -> list[Position]:
    """At most `MAX_PLACES` of the prompt's positions, in the plan's order and then from the last to
    the first."""
    known = view.rendered.offsets
    named = [
        *view.plan.readable,
        *(planned.position for planned in view.plan.writable),
        *reversed(list(known)),
    ]
    return [position for position in dict.fromkeys(named) if position in known][:MAX_PLACES]
