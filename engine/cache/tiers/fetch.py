"""The reads of one request from below the device, and the choice of what to read.

Data and arithmetic; talks to no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import takewhile
from typing import Final, Literal, TypeAlias

from engine.cache.tiers.client import TierClient
from engine.cache.tiers.object_format import ObjectKey, span_key, stored_entry_key, tail_key
from engine.cache.tree.block import Block
from engine.cache.tree.geometry import Geometry, cut
from engine.cache.tree.prompt import PlannedPrompt
from engine.cache.tree.tenant import TenantCache
from engine.prompt.types import Position

MAX_POSITIONS: Final = 64
"""Positions of one prompt at which entries are looked for: those the plan names first, then the
last ones."""

Cause: TypeAlias = Literal["late", "corrupt"]


@dataclass(slots=True, eq=False, repr=False)
class SpanRead:
    """One span or tail of a prompt below the device: tokens `[start, end)`, `start` on a span
    border.

    `sources` are the tiers that say they have it and were not tried yet, in order; `client` is the
    one it is being read from. Once it was read, `body` is its KV, page after page, and `tier` the
    name of its source.
    """

    label: ObjectKey
    start: int
    end: int
    expires_at_s: float = 0.0
    sources: list[TierClient] = field(default_factory=list)
    client: TierClient | None = None
    body: memoryview | None = None
    tier: str = ""

    @property
    def is_there(self) -> bool:
        """Whether it was read or some tier has it."""
        return self.body is not None or bool(self.sources)

    @property
    def num_tokens(self) -> int:
        """Tokens it covers."""
        return self.end - self.start


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


class FetchStatus(Enum):
    """`ASKING -> CHOSEN -> READING -> OVER`; an abandoned fetch is OVER from anywhere.

    ASKING: the tiers are asked what they have. CHOSEN: it is known what to read, and the fetch
    waits for room to read into. READING: reads are under way. OVER: nothing more comes.
    """

    ASKING = auto()
    CHOSEN = auto()
    READING = auto()
    OVER = auto()


_ALLOWED: Final[dict[FetchStatus, tuple[FetchStatus, ...]]] = {
    FetchStatus.ASKING: (FetchStatus.CHOSEN, FetchStatus.OVER),
    FetchStatus.CHOSEN: (FetchStatus.READING, FetchStatus.OVER),
    FetchStatus.READING: (FetchStatus.OVER,),
    FetchStatus.OVER: (),
}


@dataclass(slots=True, eq=False, repr=False)
class Fetch:
    """One request's reads from the lower tiers, from `seek` until its pages are on the device or it
    is abandoned. Only the `TierReader` changes it.

    `last` was the prompt's last full block on the device when the fetch began, `num_matched` the
    tokens found there. `reads` are under way or done, in token order and without a gap; those with
    a body have arrived. `cause` is why they end sooner than they should have.
    """

    tenant: TenantCache
    view: PlannedPrompt
    now_s: float
    last: Block
    num_matched: int
    status: FetchStatus = FetchStatus.ASKING
    id: int = 0
    spans: list[SpanRead] = field(default_factory=list)
    tails: dict[int, SpanRead] = field(default_factory=dict)
    unknown_entries: tuple[UnknownEntry, ...] = ()
    unanswered: list[TierClient] = field(default_factory=list)
    reads: list[SpanRead] = field(default_factory=list)
    num_missing: int = 0
    cause: Cause | None = None
    progress_s: float = 0.0
    deadline_s: float = float("inf")
    wasted_s: float = 0.0
    staged_nbytes: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.status is FetchStatus.OVER

    @property
    def objects(self) -> list[SpanRead]:
        """All that the tiers are asked for besides entries."""
        return [*self.spans, *self.tails.values()]

    def move(self, status: FetchStatus) -> None:
        """Change status; a transition not in the table is a bug and raises AssertionError."""
        assert status in _ALLOWED[self.status], f"{self.status.name} -> {status.name}"
        self.status = status

    @property
    def is_outrun(self) -> bool:
        """Whether the device has lost what it held of the prompt, so that the reads may not join it
        any more."""
        return self.last.parent is None and self.last is not self.tenant.root

    def arrived(self, at: int) -> Iterator[SpanRead]:
        """The reads that continue a device match of `at` tokens, up to the first gap."""
        for read in self.reads:
            if read.body is None or read.start > at:
                return
            if read.end > at:
                at = read.end
                yield read


def look_for(fetch: Fetch, geometry: Geometry, knows: Callable[[bytes], bool]) -> None:
    """Fill in what the tiers are to be asked: spans past the device's, and entries that `knows`
    doesn't know."""
    view, namespace, span = fetch.view, fetch.tenant.namespace, geometry.span_tokens
    first = geometry.border(min(fetch.num_matched, view.num_prompt))
    for start in range(first, view.num_prompt - span + 1, span):
        label = ObjectKey(
            span_key(namespace, view.keys.ancestor(start + span)),
            cut(view.ids, start, start + span),
        )
        fetch.spans.append(SpanRead(label, start, start + span))
    unknown: dict[bytes, UnknownEntry] = {}
    for position in _positions(view):
        offset = view.offset(position)
        if not offset:
            continue
        ancestor, tail = view.keys.ancestor(offset), view.keys.tail(offset)
        start = geometry.border(offset)
        if offset > max(start, fetch.num_matched) and offset not in fetch.tails:
            label = ObjectKey(tail_key(namespace, ancestor, tail), cut(view.ids, start, offset))
            fetch.tails[offset] = SpanRead(label, start, offset)
        key = view.key(position)
        if key not in unknown and not knows(key):
            unknown[key] = UnknownEntry(
                key,
                ancestor,
                tail,
                position,
                offset,
                ObjectKey(stored_entry_key(namespace, key), tail),
            )
    fetch.unknown_entries = tuple(unknown.values())


def choose(
    fetch: Fetch,
    geometry: Geometry,
    is_live: Callable[[Position], bool],
    is_faster: Callable[[SpanRead], bool],
) -> list[SpanRead]:
    """The spans to read, in token order: all that the entry to be read needs, and beyond it those
    that are faster read than computed, says `is_faster`."""
    start = geometry.border(min(fetch.num_matched, fetch.view.num_prompt))
    chain = list(takewhile(lambda span: span.is_there, fetch.spans))
    live = _reachable(fetch, geometry, is_live, chain[-1].end if chain else start)
    promised = _promised(fetch, live)
    chosen = list(takewhile(lambda span: span.start < promised or is_faster(span), chain))
    end = chosen[-1].end if chosen else start
    for offset in sorted(live.values(), reverse=True):
        tail = fetch.tails.get(offset)
        if (
            tail is not None
            and tail.start == end
            and tail.is_there
            and (offset <= promised or is_faster(tail))
        ):
            return [*chosen, tail]
    return chosen


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
    """At most `MAX_POSITIONS` of the prompt's positions, in the plan's order and then from the last
    to the first."""
    known = view.rendered.offsets
    named = [
        *view.plan.readable,
        *(planned.position for planned in view.plan.writable),
        *reversed(list(known)),
    ]
    return [position for position in dict.fromkeys(named) if position in known][:MAX_POSITIONS]
