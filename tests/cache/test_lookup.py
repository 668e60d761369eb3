"""One look per request: used again while the tree has not changed, matched again where it has."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from engine.cache.tree import block as block_module
from engine.cache.tree.radix import RadixIndex
from engine.prompt.rendered import RenderedPrompt
from engine.store.memory import MemoryStore
from tests.fakes.document import DOCUMENT, UNMARKED
from tests.fakes.rig import Rig, marked, turn
from tests.fakes.stepper import Outcome, Stepper

PROMPT = list(range(150))


class Work:
    """Counts what is packed, hashed and matched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_packed = 0
        self.hashed: Counter[bytes] = Counter()
        self.num_matches = 0
        monkeypatch.setattr(block_module, "array", self._counted_array(block_module.array))
        monkeypatch.setattr(block_module, "hashlib", self)
        monkeypatch.setattr(RadixIndex, "match", self._counted_match(RadixIndex.match))

    def sha256(self, message: bytes) -> Any:
        self.hashed[message] += 1
        return hashlib.sha256(message)

    @property
    def num_full_keys(self) -> int:
        """Hashes of full blocks."""
        return sum(num for message, num in self.hashed.items() if message.startswith(b"full\0"))

    def _counted_array(self, array: Callable[..., Any]) -> Callable[..., Any]:
        def make(code: str, token_ids: Any = ()) -> Any:
            self.num_packed += len(token_ids)
            return array(code, token_ids)

        return make

    def _counted_match(self, match: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.num_matches += 1
            return match(*arguments)

        return counted


@pytest.mark.parametrize("has_tier", [False, True])
def test_a_request_is_looked_up_once(*, has_tier: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cold, its tokens are packed once and each of its blocks is hashed once, for entries, spans
    and the tree; it is matched once."""
    stepper = Stepper(context=400, store=MemoryStore(1 << 20) if has_tier else None)
    work = Work(monkeypatch)
    outcome = answer(stepper, PROMPT, max_tokens=9)
    num_tokens = len(PROMPT) + len(outcome.token_ids) - 1
    assert work.num_matches == 1
    assert work.num_packed == num_tokens
    assert work.num_full_keys == num_tokens // stepper.runner.block_size


def test_a_warm_request_hashes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of matched blocks are taken as they are."""
    stepper = Stepper(context=400)
    stepper.answer(PROMPT, marks=[100], max_tokens=1)
    work = Work(monkeypatch)
    answer(stepper, [*PROMPT, 7, 8, 9], max_tokens=1)
    assert (work.num_matches, work.num_packed) == (1, len(PROMPT) + 3)
    assert work.num_full_keys == 1


def test_a_lookup_is_the_same_while_nothing_changes() -> None:
    """No other object is made, and no time passes for it."""
    rig = Rig()
    rig.run(DOCUMENT, UNMARKED)
    lookup = rig.cache.lookup("default", prompt(), UNMARKED, rig.now_s)
    assert rig.cache.current(lookup) is lookup
    rig.advance(1)
    assert rig.cache.current(lookup) is lookup


def test_a_lookup_follows_the_tree() -> None:
    """It becomes longer as others compute, shorter as blocks expire or are evicted, and empty with
    its tenant."""
    rig = Rig(num_pages=10)
    lookup = rig.cache.lookup("default", prompt(), UNMARKED, rig.now_s)
    assert lookup.num_found == 0
    rig.run(DOCUMENT, UNMARKED)
    longer = rig.cache.current(lookup)
    assert longer.num_found == 21
    assert longer.prompt is lookup.prompt
    rig.advance(UNMARKED.unmarked_ttl_s)
    assert rig.cache.current(longer).num_found == 0
    rig.run(DOCUMENT, UNMARKED)
    again = rig.cache.current(longer)
    assert again.num_found == 21, "what had expired was computed again, in the same blocks"
    rig.run(list(range(200, 236)), UNMARKED)
    assert rig.cache.current(again).num_found < 21
    rig.run(DOCUMENT, UNMARKED)
    last = rig.cache.current(again)
    assert last.num_found == 21
    rig.cache.flush("default")
    flushed = rig.cache.current(last)
    assert flushed.num_found == 0
    lease = rig.cache.admit(last, 23)
    assert lease is not None
    assert (lease.num_cached, lease.tenant) == (0, flushed.tenant)
    rig.cache.release(lease, [], 0)
    rig.cache.check()


def test_an_old_lookup_is_admitted_as_a_new_one() -> None:
    """Whatever happened since: entries, boundaries and pages are those of now."""
    rig = Rig()
    plan = marked(turn(0))
    old = rig.cache.lookup("default", prompt(), plan, rig.now_s)
    rig.run(DOCUMENT, plan)
    lease = rig.cache.admit(old, 23)
    assert lease is not None
    assert lease.report.hit is not None
    assert (lease.num_cached, lease.report.hit.offset) == (21, 21)
    rig.cache.release(lease, [], 0)
    rig.cache.check()


def answer(stepper: Stepper, token_ids: list[int], max_tokens: int) -> Outcome:
    """A whole answer, without the checks of each step, which hash every block."""
    outcome = stepper.submit(token_ids, marks=[40, 100], max_tokens=max_tokens)
    while stepper.loop.has_work:
        stepper.loop.step()
    return outcome


def prompt() -> RenderedPrompt:
    return RenderedPrompt(tuple(DOCUMENT), {turn(0): len(DOCUMENT)}, 0)
