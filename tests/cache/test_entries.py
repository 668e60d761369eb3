"""The entry table: live entries, tombstones, their bounds."""

from __future__ import annotations

from engine.cache.tree.block import entry_key
from engine.cache.tree.entries import TOMBSTONE_S, Entry, EntryTable
from engine.prompt.types import Position


def make(name: str, expires_at_s: float, salt: str = "") -> Entry:
    """An entry at the end of the full block called `name`."""
    ancestor = name.encode()
    return Entry(
        entry_key(ancestor, b"", salt),
        ancestor,
        b"",
        Position("system", 0),
        16,
        5.0,
        expires_at_s,
        True,
    )


def test_an_entry_is_read_until_it_expires_and_remembered_for_an_hour() -> None:
    """At its expiry it is dead, swept or not; a tombstone an hour more; then gone."""
    table = EntryTable()
    entry = make("a", 10.0)
    table.add(entry)
    assert table.find_live(entry.key, 9.9) is entry
    assert table.find_live(entry.key, 10.0) is None
    assert table.find(entry.key) is entry
    table.sweep(10.0, 100)
    assert (len(table), table.num_tombstones) == (0, 1)
    assert table.find(entry.key) is entry
    table.check(10.0)
    table.sweep(10.0 + TOMBSTONE_S, 100)
    assert table.find(entry.key) is None
    assert table.at(b"a", b"") == []
    table.check(10.0 + TOMBSTONE_S)


def test_a_renewed_entry_outlives_its_first_expiry() -> None:
    """The sweep looks at the expiry of now, and a longer class stays."""
    table = EntryTable()
    entry = make("a", 10.0)
    table.add(entry)
    entry.renew(8.0, 60.0)
    entry.renew(9.0)
    table.sweep(10.0, 100)
    assert table.find_live(entry.key, 68.9) is entry
    table.sweep(69.0, 100)
    assert table.num_tombstones == 1


def test_an_old_request_never_shortens_an_entry() -> None:
    """Renewing from an earlier start leaves the later expiry."""
    entry = make("a", 100.0)
    entry.renew(1.0, 5.0)
    assert entry.expires_at_s == 100.0


def test_a_dead_entry_is_replaced() -> None:
    """A new entry takes the place of the tombstone, and of the expired entry that was not swept
    yet."""
    for swept in (True, False):
        table = EntryTable()
        table.add(make("a", 10.0))
        if swept:
            table.sweep(11.0, 100)
        again = make("a", 20.0)
        table.add(again)
        assert table.at(b"a", b"") == [again]
        table.check(11.0)
        table.sweep(15.0, 100)
        assert table.find_live(again.key, 15.0) is again
        table.check(15.0)


def test_tombstones_are_bounded_oldest_first() -> None:
    """More than the bound are forgotten before their hour."""
    table = EntryTable(max_tombstones=3)
    entries = [make(str(i), float(i)) for i in range(5)]
    for entry in entries:
        table.add(entry)
    table.sweep(10.0, 100)
    assert [table.find(entry.key) is not None for entry in entries] == [
        False,
        False,
        True,
        True,
        True,
    ]
    table.check(10.0)


def test_one_place_holds_an_entry_per_salt() -> None:
    """Entries under different salts are found by place together, by key apart."""
    table = EntryTable()
    plain, salted = make("a", 10.0), make("a", 10.0, "auto")
    table.add(plain)
    table.add(salted)
    assert table.at(b"a", b"") == [plain, salted]
    assert table.find(salted.key) is salted
