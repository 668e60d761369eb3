"""Opening the folder of a disk store: lock it, delete the leftovers of a dead writer,
read every header.

Decides nothing.

No index is stored: the headers are the truth, and reading 120 bytes of each file is quick next to
loading a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from engine.store.disk.files import Files
from engine.store.disk.index import ObjectRecord
from engine.store.disk.layout import FoundFile, Layout, Survey
from engine.store.errors import StoreBusy
from engine.store.object import decode_header

NUM_READERS: Final = 8
"""Headers are read by this many threads: on a cold disk the time is latency."""

Progress = Callable[[int, int], None]
"""Called with (objects looked at, objects there are), from the thread that opens, first with 0 and
last with all."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A folder that is ours. `records` are sound objects, least recently written first; `damaged`
    are files to delete; `unreadable_nbytes` are objects that the medium would not let us read
    now."""

    lock_fd: int
    survey: Survey
    records: list[ObjectRecord]
    damaged: list[FoundFile]
    unreadable_nbytes: int


def open_folder(layout: Layout, files: Files, progress: Progress) -> Opened:
    """Lock and read the folder, which is made when missing. Raises `StoreBusy`, or OSError when the
    medium fails."""
    for folder in reversed([layout.root, *layout.root.parents]):
        if not folder.exists():
            files.make_folder(folder)
    try:
        lock_fd = files.lock(layout.lock)
    except BlockingIOError as error:
        raise StoreBusy(
            f"another process uses the folder {layout.root}: give each gateway a folder of its own"
        ) from error
    try:
        with suppress(OSError):  # a folder that can't be written is still read
            files.make_folder(layout.temp)
        survey = layout.survey()
        _clear(survey, files)
        return _read(lock_fd, survey, layout, files, progress)
    except BaseException:
        files.unlock(lock_fd)
        raise


def _clear(survey: Survey, files: Files) -> None:
    for path in survey.leftovers:
        try:
            files.unlink(path)
        except OSError:
            with suppress(OSError):
                survey.other_nbytes += files.allocated(path)


def _read(lock_fd: int, survey: Survey, layout: Layout, files: Files, progress: Progress) -> Opened:
    found = sorted(survey.objects, key=lambda file: file.modified_s)
    records: list[ObjectRecord] = []
    damaged: list[FoundFile] = []
    unreadable_nbytes = 0
    progress(0, len(found))
    with ThreadPoolExecutor(NUM_READERS, "store-open") as pool:
        results: Iterable[ObjectRecord | OSError | None] = pool.map(
            lambda file: _record(file, layout, files), found
        )
        for done, (file, result) in enumerate(zip(found, results, strict=True), 1):
            match result:
                case ObjectRecord():
                    records.append(result)
                case FileNotFoundError():
                    pass
                case OSError():
                    unreadable_nbytes += file.allocated_nbytes
                case None:
                    damaged.append(file)
            progress(done, len(found))
    return Opened(lock_fd, survey, records, damaged, unreadable_nbytes)


def _record(file: FoundFile, layout: Layout, files: Files) -> ObjectRecord | OSError | None:
    try:
        data, payload_nbytes = files.read_header(layout.path(file.key))
    except OSError as error:
        return error
    header = decode_header(data)
    if header is None or header.key != file.key or header.payload_nbytes != payload_nbytes:
        return None
    return ObjectRecord(
        file.key, payload_nbytes, file.allocated_nbytes, header.expires_at_s, header.recompute_cost
    )
