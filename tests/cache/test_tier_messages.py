"""What I/O threads say to the engine thread, message by message."""

from __future__ import annotations

import errno
from collections import deque
from pathlib import Path

import pytest

from engine.cache.tiers.calls import (
    ObjectSpec,
    TierCall,
    TierDone,
    TierPurge,
    TierQuery,
    TierQueryResult,
    TierRefresh,
    TierWrite,
)
from engine.cache.tiers.fetch import FetchStatus
from engine.cache.tiers.object_format import ObjectKey
from engine.cache.tiers.tiers import Tiers
from engine.cache.tree.geometry import Geometry
from engine.cache.tree.namespace import ObjectNamespace
from engine.cache.tree.stats import CacheCounters
from engine.store.disk.store import DiskStore
from engine.store.memory import MemoryStore
from tests.cache.test_tiers import Host, filled, marked
from tests.fakes.faulty_files import FaultyFiles
from tests.fakes.tier_io import ManualIo, inline_tiers, manual_tiers

SPEC = ObjectSpec(ObjectKey(b"n" * 32, b""), ObjectNamespace(b"n" * 8, b"r" * 32, b"f"), 2000.0)


def ended(messages: deque[TierDone]) -> list[tuple[type[TierCall], object, str]]:
    return [(type(done.call), done.result, done.error) for done in messages]


class Copy:
    """Remembers that it was lost."""

    is_lost = False

    def lost(self) -> None:
        self.is_lost = True


def test_each_call_is_followed_by_its_message() -> None:
    """A write, an expiry, a purge: in order, each told once, and the results are in the
    messages."""
    clients = inline_tiers(("ssd", MemoryStore(1 << 20)))
    tiers = Tiers(clients, Geometry(4, 64, 16), CacheCounters())
    num_purged: list[int | None] = []
    tiers.put(SPEC, b"body")
    tiers.refresh(SPEC.label.key, 3000.0)
    tiers.send_refreshes()
    tiers.purge(b"n", num_purged.append)
    assert ended(clients.completions._messages) == [
        (TierWrite, 4, ""),
        (TierRefresh, None, ""),
        (TierPurge, 1, ""),
    ]
    tiers.poll()
    assert num_purged == [1]
    assert tiers.stats()["ssd"].counters.written_nbytes == 4


def test_a_store_that_raises_still_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says so, without a result: nothing waits for ever."""
    store, copy = MemoryStore(1 << 20), Copy()
    monkeypatch.setattr(store, "refresh_many", lambda *args, **options: 1 // 0)
    clients = inline_tiers(("ssd", store))
    tiers = Tiers(clients, Geometry(4, 64, 16), CacheCounters())
    tiers.put(SPEC, b"body", copy)
    assert ended(clients.completions._messages) == [(TierWrite, None, "ZeroDivisionError")]
    tiers.poll()
    assert copy.is_lost
    counters = tiers.stats()["ssd"].counters
    assert (counters.num_errors, counters.num_dropped_writes) == (1, 1)


def test_a_late_answer_changes_nothing() -> None:
    """An answer to a fetch that has chosen, or is over, is counted and else ignored."""
    reader = ManualIo(is_open=False)
    clients = manual_tiers(("ssd", filled(marked()), reader, ManualIo()))
    host = Host(clients)
    fetch = host.seek(marked())
    assert fetch.status is FetchStatus.ASKING
    reader.run(1)
    (done,) = clients.completions._messages
    assert isinstance(done.call, TierQuery)
    assert isinstance(done.result, TierQueryResult)
    host.cache.abandon(fetch)
    host.cache.tiers.poll()
    assert (fetch.status, fetch.reads) == (FetchStatus.OVER, [])
    assert not reader.jobs
    host.cache.check()


def test_a_fetch_goes_one_way() -> None:
    """From asking over chosen and reading to its end; nothing leads back."""
    order = [FetchStatus.ASKING, FetchStatus.CHOSEN, FetchStatus.READING, FetchStatus.OVER]
    reader = ManualIo(is_open=False)
    host = Host(manual_tiers(("ssd", filled(marked()), reader, ManualIo())))
    fetch = host.seek(marked())
    seen = [fetch.status]
    while not fetch.is_over:
        reader.run(1)
        host.cache.tiers.poll()
        seen.append(fetch.status)
    assert seen == sorted(seen, key=order.index)
    assert FetchStatus.READING in seen
    for status in order:
        with pytest.raises(AssertionError, match="OVER ->"):
            fetch.move(status)


def test_errors_of_the_medium_are_counted(tmp_path: Path) -> None:
    """A store hides the errors of its medium, but not from the operator's counters."""
    files = FaultyFiles()
    with DiskStore(tmp_path, nbytes=1 << 24, files=files) as store:
        host = Host(inline_tiers(("ssd", store)))
        host.answer(marked())
        assert host.cache.stats().tiers["ssd"].counters.num_errors == 0
        files.fail("read_object", code=errno.EIO)
        other = Host(inline_tiers(("ssd", store)))
        other.answer(marked())
        assert other.cache.stats().tiers["ssd"].counters.num_errors > 0
