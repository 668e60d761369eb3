"""A tier in a folder that survives kill -9 and never passes its cap.

Knows nothing of what the bytes mean.

Every object is written to a file of its own and renamed into place, so that a file under its name
is whole wherever the process dies. After a loss of power it may be partly written: then its
checksums say so and it is a miss. With `fsync` it is whole then too, at the price of waiting for
the medium.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from engine.memory import Payload
from engine.store.base import Found, Item, StoreStats
from engine.store.disk.contents import FolderContents
from engine.store.disk.files import Files
from engine.store.disk.index import ObjectRecord
from engine.store.disk.layout import Layout
from engine.store.disk.opening import Progress, open_folder
from engine.store.errors import StoreBusy
from engine.store.health import ErrorReporter
from engine.store.object import HEADER_NBYTES, decode_header, encode_header

REOPEN_S: Final = 5.0
"""Pause before a folder that could not be opened is tried again."""
SWEEP: Final = 16
"""The most expired objects that a call deletes, beside its own work."""


class DiskStore:
    """At most `nbytes` of a folder: objects, folders, foreign files and writes under way, in
    allocated blocks.

    What must go goes expired first, then by the score `eviction` of `index.py`; what is being read
    stays. Nothing is written while less than `min_free_nbytes` would be left on the file system.
    An object is expired by the largest `now_s` seen, and deleted only by the largest `now_s` of
    `expire`: a reader may be ahead of a refresh that waits among the writes. After a restart the
    order of use is the order of writing, and each object was used once. Foreign files are never
    touched.

    The bulk of a read or write happens outside the lock, all changes of names inside.
    """

    def __init__(
        self,
        path: Path,
        *,
        nbytes: int,
        min_free_nbytes: int = 0,
        eviction: str = "lru",
        fsync: bool = False,
        waits: bool = False,
        progress: Progress = lambda num_done, num_total: None,
        files: Files | None = None,
    ) -> None:
        """`progress(num_done, num_total)` hears of the headers read while the folder is opened.
        With `waits` a folder that another process has is no error: this store does nothing until it
        can take it over."""
        if nbytes < 0 or min_free_nbytes < 0:
            raise ValueError("nbytes and min_free_nbytes must not be negative")
        self.cap_nbytes = nbytes
        self.stats = StoreStats()
        self._layout = Layout(path.absolute())
        self._files = Files() if files is None else files
        self._min_free_nbytes = min_free_nbytes
        self._fsync = fsync
        self._waits = waits
        self._progress = progress
        self._health = ErrorReporter("ssd", self.stats)
        self._contents = FolderContents(self._layout, self._files, self._health, nbytes, eviction)
        self._lock = threading.Lock()
        self._lock_fd: int | None = None
        self._closed = False
        self._now_s = self._expired_s = float("-inf")
        self._tried_at_s = float("-inf")
        self._part_numbers = itertools.count()

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key, from memory."""
        with self._lock:
            self._begin(now_s, 0)
            records = [self._contents.live(key, self._now_s) for key in keys]
            return [
                None if record is None else Found(record.payload_nbytes, record.expires_at_s)
                for record in records
            ]

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[Payload | None]:
        """One payload or None per key, its checksum verified. What turns out damaged is deleted."""
        with self._lock:
            self._begin(now_s, 0)
        return [self._get(key) for key in keys]

    def put_many(self, items: Sequence[Item], *, only_longer: bool = False) -> list[bool]:
        """Store items, in order. Without `fsync`, held means safe from the death of this
        process."""
        with self._lock:
            self._begin(self._now_s, SWEEP)
        return [
            (only_longer and self._outlives(item.key, item.expires_at_s)) or self._put(item)
            for item in items
        ]

    def refresh_many(
        self, expiries: Mapping[bytes, float], *, only_longer: bool = False
    ) -> list[bool]:
        """Move the expiry of objects, in their files too. One that fails lives for the shorter of
        both times."""
        with self._lock:
            self._begin(self._now_s, SWEEP)
        return [
            self._refresh(key, expires_at_s, only_longer=only_longer)
            for key, expires_at_s in expiries.items()
        ]

    def expire(self, now_s: float) -> None:
        """Delete up to `SWEEP` expired objects, and try again what could not be deleted."""
        with self._lock:
            self._expired_s = max(self._expired_s, now_s)
            self._begin(now_s, SWEEP)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys and unlink their files. A file that can't be unlinked now is tried again
        at later calls."""
        with self._lock:
            self._begin(self._now_s)
            for key in keys:
                self._discard(key)

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every object held when the scan began, expired ones included, least recently used first.
        Raises OSError while the folder could not be opened: what is in it is not known."""
        with self._lock:
            self._begin(self._now_s)
            if self._lock_fd is None:
                raise OSError(self.stats.problem or "the folder is closed")
            return iter(
                [
                    (record.key, Found(record.payload_nbytes, record.expires_at_s))
                    for record in self._contents.index
                ]
            )

    def check(self) -> None:
        """Assert, while no call is in flight, that counters, index and folder agree and that the
        cap holds."""
        with self._lock:
            self._contents.check()

    def __enter__(self) -> Self:
        """Lock and read the folder. Raises `StoreBusy`, unless it `waits`; a folder that fails
        otherwise is tried again at later calls."""
        with self._lock:
            self._closed = False
            try:
                self._open()
            except StoreBusy as error:
                if not self._waits:
                    raise
                self._health.failed("open", str(error))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the folder up; the files stay."""
        with self._lock:
            self._closed = True
            if self._lock_fd is not None:
                self._files.unlock(self._lock_fd)
                self._lock_fd = None

    def _begin(self, now_s: float, num_sweep: int | None = None) -> None:
        self._now_s = self._health.now_s = max(self._now_s, now_s)
        tried_lately = self._tried_at_s <= self._now_s < self._tried_at_s + REOPEN_S
        if self._lock_fd is None and not self._closed and not tried_lately:
            try:
                self._open()
            except StoreBusy as error:
                self._health.failed("open", str(error))
        if num_sweep is not None:
            self._contents.sweep(self._expired_s, num_sweep)

    def _open(self) -> None:
        self._tried_at_s = self._now_s
        try:
            opened = open_folder(self._layout, self._files, self._progress)
        except OSError as error:
            self._health.failed("open", error)
            return
        self._health.worked("open")
        self._lock_fd = opened.lock_fd
        self._contents.take_over(opened)

    def _start_over(self) -> None:
        """The folder was removed under us: the next call makes it again."""
        self._contents.lose()
        if self._lock_fd is not None:
            self._files.unlock(self._lock_fd)
            self._lock_fd = None
        self._tried_at_s = float("-inf")

    def _get(self, key: bytes) -> Payload | None:
        with self._lock:
            record = self._contents.live(key, self._now_s)
            if record is None:
                return None
            self._contents.index.touch(record)
            record.num_readers += 1
        payload: Payload | None = None
        failure: OSError | None = None
        try:
            payload = self._read(key)
        except OSError as error:
            failure = error
        with self._lock:
            self._contents.end_read(record)
            self._judge(record, payload, failure)
        return payload

    def _read(self, key: bytes) -> Payload | None:
        data, payload = self._files.read_object(self._layout.path(key))
        header = decode_header(data)
        return (
            payload
            if header is not None and header.key == key and header.describes(payload)
            else None
        )

    def _judge(
        self, record: ObjectRecord, payload: Payload | None, failure: OSError | None
    ) -> None:
        """Count what a read came to. An object found damaged or gone is forgotten, unless it was
        replaced meanwhile."""
        if payload is not None:
            self._health.worked("get")
            return
        if failure is not None and not isinstance(failure, FileNotFoundError):
            self._health.failed("get", failure)
            return
        if self._contents.index.get(record.key) is record:
            self.stats.num_damaged += 1
            self._contents.remove(record)

    def _outlives(self, key: bytes, expires_at_s: float) -> bool:
        with self._lock:
            record = self._contents.index.get(key)
            return record is not None and record.expires_at_s > expires_at_s

    def _put(self, item: Item) -> bool:
        """Whether it is held now."""
        key, payload = item.key, item.payload
        header = encode_header(key, payload, item.expires_at_s, item.recompute_cost)
        part = self._layout.part(f"{os.getpid()}-{next(self._part_numbers)}")
        with self._lock:
            reserved_nbytes = self._prepare(key, HEADER_NBYTES + len(payload))
        if reserved_nbytes is None:
            return False
        try:
            nbytes = self._files.write_new(part, (header, payload), fsync=self._fsync)
            record = ObjectRecord(key, len(payload), nbytes, item.expires_at_s, item.recompute_cost)
            with self._lock:
                self._contents.install(record, part, reserved_nbytes, fsync=self._fsync)
                self._contents.shrink(self._expired_s)
                self._health.worked("put")
                return self._contents.index.get(key) is not None
        except OSError as error:
            with self._lock:
                self._health.failed("put", error)
                self._contents.abandon(part, reserved_nbytes)
                self._discard(key)
            return False

    def _prepare(self, key: bytes, nbytes: int) -> int | None:
        """The bytes reserved for a write that may begin; None when it may not, and then nothing is
        left under the key."""
        reserved_nbytes = None
        try:
            if self._lock_fd is None:
                pass
            elif self._files.free_nbytes(self._layout.root) < self._min_free_nbytes + nbytes:
                self._health.failed("put", "too little space is free on the file system")
            else:
                reserved_nbytes = self._contents.reserve(nbytes, self._expired_s)
                self._contents.make_folders(key)
        except OSError as error:
            self._health.failed("put", error)
            if reserved_nbytes is not None:
                self._contents.release(reserved_nbytes)
                reserved_nbytes = None
            if isinstance(error, FileNotFoundError) and not self._layout.root.exists():
                self._start_over()
        if reserved_nbytes is None:
            self._discard(key)
        return reserved_nbytes

    def _refresh(self, key: bytes, expires_at_s: float, *, only_longer: bool) -> bool:
        """Whether the object is held now, until then or later."""
        with self._lock:
            record = self._contents.index.get(key)
            if record is None:
                return False
            if only_longer:
                expires_at_s = max(expires_at_s, record.expires_at_s)
            try:
                self._contents.refresh(record, expires_at_s)
            except FileNotFoundError:
                self._contents.remove(record)
                return False
            except OSError as error:
                self._health.failed("refresh", error)
                return record.expires_at_s >= expires_at_s
            self._health.worked("refresh")
            return True

    def _discard(self, key: bytes) -> None:
        record = self._contents.index.get(key)
        if record is not None:
            self._contents.remove(record)
