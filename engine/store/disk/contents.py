"""The contents of a disk store's folder and their share of the cap: the one owner of both.

Moves no payloads.

Not thread-safe: the store calls everything here under its lock. Names change only here, together
with the index, so that folder and index agree whenever the lock is free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from engine.store.disk.files import Files
from engine.store.disk.index import DiskIndex, ObjectRecord
from engine.store.disk.layout import Layout
from engine.store.disk.opening import Opened
from engine.store.health import ErrorReporter
from engine.store.object import EXPIRY_AT, encode_expiry

BLOCK_NBYTES: Final = 4096
"""Files are reserved in whole blocks of this size, that of the file systems in use."""
SLACK_NBYTES: Final = 4 * BLOCK_NBYTES
"""Reserved beside a file while it is written: folders that are made or grow, and the file system's
own map of it."""
MAX_RETRIES: Final = 16
"""The most files that could not be deleted and are tried again at a time."""


class FolderContents:
    """`stats.nbytes` is the sum of objects, folders, foreign files, files that resist deletion, and
    reservations.

    It never passes `cap_nbytes` once `take_over` has returned, unless there are foreign files or
    some resist deletion.
    """

    def __init__(
        self, layout: Layout, files: Files, health: ErrorReporter, cap_nbytes: int, eviction: str
    ) -> None:
        self.index = DiskIndex(eviction)
        self._layout = layout
        self._files = files
        self._health = health
        self._stats = health.stats
        self._cap_nbytes = cap_nbytes
        self._other_nbytes = 0
        self._reserved_nbytes = 0
        self._folders: dict[Path, int] = {}
        self._undeleted: dict[Path, int] = {}

    def take_over(self, opened: Opened) -> None:
        """Hold what was found; delete what is damaged, and what is over the cap, soonest to expire
        first.

        No clock is needed for that order, and whatever has expired goes first in it.
        """
        self._folders = dict(opened.survey.folders)
        self._other_nbytes = opened.survey.other_nbytes + opened.unreadable_nbytes
        self._stats.nbytes += self._other_nbytes + sum(self._folders.values())
        for file in opened.damaged:
            self._stats.num_damaged += 1
            self._stats.nbytes += file.allocated_nbytes
            self._unlink(self._layout.path(file.key), file.allocated_nbytes)
        for record in opened.records:
            self.index.add(record)
            self._stats.nbytes += record.allocated_nbytes
        while (
            self._stats.nbytes > self._cap_nbytes
            and (first := self.index.next_to_expire()) is not None
        ):
            self.remove(first)
        self._count()

    def lose(self) -> None:
        """Nothing of what was held is there any more."""
        for record in list(self.index):
            self.remove(record)
        self._stats.nbytes -= self._fixed_nbytes - self._reserved_nbytes
        self._folders, self._undeleted, self._other_nbytes = {}, {}, 0
        self._count()

    def live(self, key: bytes, now_s: float) -> ObjectRecord | None:
        """The record under `key` unless it has expired. It stays: a refresh may be on its way."""
        record = self.index.get(key)
        return record if record is not None and record.expires_at_s > now_s else None

    def reserve(self, payload_nbytes: int, now_s: float) -> int | None:
        """Bytes set aside for an object of this size and all it may entail, others evicted for it;
        None when it can't fit."""
        nbytes = -(-payload_nbytes // BLOCK_NBYTES) * BLOCK_NBYTES + BLOCK_NBYTES + SLACK_NBYTES
        if nbytes + self._fixed_nbytes > self._cap_nbytes:
            return None
        while self._stats.nbytes + nbytes > self._cap_nbytes:
            victim = self.index.victim(now_s)
            if victim is None or not self.remove(victim):
                return None
        self._reserved_nbytes += nbytes
        self._stats.nbytes += nbytes
        return nbytes

    def make_folders(self, key: bytes) -> None:
        """The folders for `key` and for parts are there. Raises OSError."""
        for folder in (self._layout.temp, *self._layout.folders(key)):
            if self._files.make_folder(folder):
                self._measure(folder)

    def install(
        self, record: ObjectRecord, part: Path, reserved_nbytes: int, *, fsync: bool
    ) -> None:
        """The finished `part` becomes the object, in the place of an older one, and its reservation
        ends. Raises OSError; then there is no object, and the reservation goes on."""
        path = self._layout.path(record.key)
        self._files.rename(part, path)
        self._reserved_nbytes -= reserved_nbytes
        # In one step: whoever looks at the count meanwhile must not see the file twice.
        undeleted_nbytes = self._undeleted.pop(path, 0)
        self._stats.nbytes += record.allocated_nbytes - undeleted_nbytes - reserved_nbytes
        replaced = self.index.get(record.key)
        if replaced is not None:
            self.index.remove(replaced)
            self._give_back(replaced)
        self.index.add(record)
        self._count()
        try:
            self._measure(path.parent)
            if fsync:
                self._files.sync_folder(path.parent)
        except OSError:
            self.remove(record)
            self._reserved_nbytes += reserved_nbytes
            self._stats.nbytes += reserved_nbytes
            raise

    def release(self, reserved_nbytes: int) -> None:
        """A reservation is over."""
        self._reserved_nbytes -= reserved_nbytes
        self._stats.nbytes -= reserved_nbytes

    def shrink(self, now_s: float) -> None:
        """The cap holds again, in case a file took more of the medium than was reserved for it."""
        while (
            self._stats.nbytes > self._cap_nbytes
            and (victim := self.index.victim(now_s)) is not None
        ):
            if not self.remove(victim):
                return

    def abandon(self, part: Path, reserved_nbytes: int) -> None:
        """A part will not be finished: delete it and end its reservation."""
        self._reserved_nbytes -= reserved_nbytes
        self._unlink(part, reserved_nbytes)

    def remove(self, record: ObjectRecord) -> bool:
        """Forget the record and delete its file; whether its bytes are free now. Its readers keep
        them until they end."""
        self.index.remove(record)
        self._count()
        path = self._layout.path(record.key)
        if record.num_readers > 0:
            record.removed = self._unlink(path, record.allocated_nbytes, free=False)
            return False
        return self._unlink(path, record.allocated_nbytes)

    def end_read(self, record: ObjectRecord) -> None:
        """A reader of the record's file is done."""
        record.num_readers -= 1
        if record.removed and record.num_readers == 0:
            self._stats.nbytes -= record.allocated_nbytes

    def refresh(self, record: ObjectRecord, expires_at_s: float) -> None:
        """Rewrite the expiry in the file, as a use. Raises OSError; then the object lives for the
        shorter of both times."""
        self.index.touch(record)
        if record.expires_at_s == expires_at_s:
            return
        try:
            self._files.overwrite(
                self._layout.path(record.key), EXPIRY_AT, encode_expiry(record.key, expires_at_s)
            )
        except OSError:
            self.index.expire_at(record, min(record.expires_at_s, expires_at_s))
            raise
        self.index.expire_at(record, expires_at_s)
        self._count()

    def sweep(self, now_s: float, limit: int) -> None:
        """Delete up to `limit` expired objects, soonest expired first, and try again what could not
        be deleted."""
        for path, nbytes in list(self._undeleted.items())[:MAX_RETRIES]:
            del self._undeleted[path]
            if not self._unlink(path, nbytes):
                break
        self._count()
        if not self._undeleted:
            self._health.worked("delete")
        for _ in range(limit):
            first = self.index.next_to_expire()
            if first is None or first.expires_at_s > now_s or first.num_readers > 0:
                return
            self.remove(first)

    def check(self) -> None:
        """Assert, while nothing is in flight, that counters, index and folder agree and that the
        cap holds."""
        survey = self._layout.survey()
        assert self._reserved_nbytes == 0
        assert all(record.num_readers == 0 for record in self.index)
        assert {self._layout.path(file.key) for file in survey.objects} <= {
            *(self._layout.path(record.key) for record in self.index),
            *self._undeleted,
        }
        assert set(survey.leftovers) <= set(self._undeleted)
        assert len(self.index) == self._stats.num_items
        assert self._stats.nbytes == self._fixed_nbytes + sum(
            record.allocated_nbytes for record in self.index
        )
        assert self._stats.nbytes <= self._cap_nbytes or len(self.index) == 0

    @property
    def _fixed_nbytes(self) -> int:
        return (
            self._other_nbytes
            + sum(self._folders.values())
            + sum(self._undeleted.values())
            + self._reserved_nbytes
        )

    def _unlink(self, path: Path, nbytes: int, *, free: bool = True) -> bool:
        """Whether the file is gone. Its bytes are given back, or stay counted under
        `_undeleted`."""
        try:
            self._files.unlink(path)
        except OSError as error:
            self._undeleted[path] = nbytes
            self._count()
            self._health.failed("delete", error)
            return False
        if free:
            self._stats.nbytes -= nbytes
        return True

    def _give_back(self, replaced: ObjectRecord) -> None:
        if replaced.num_readers > 0:
            replaced.removed = True
        else:
            self._stats.nbytes -= replaced.allocated_nbytes

    def _measure(self, folder: Path) -> None:
        nbytes = self._files.allocated(folder)
        self._stats.nbytes += nbytes - self._folders.get(folder, 0)
        self._folders[folder] = nbytes

    def _count(self) -> None:
        self._stats.num_items = len(self.index)
        self._stats.num_undeleted = len(self._undeleted)
        self._stats.pinned_nbytes = self.index.pinned_nbytes
