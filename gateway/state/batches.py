"""Message batches on disk: their requests, state and results.

Knows no HTTP server and no engine.

A batch is a folder, `requests.jsonl` and `results.jsonl` in it, and `batch.json` with everything
else, which is replaced as a whole. A result is written before it is counted, so that work can go on
after `kill -9`. Source of the shapes: anthropic 2.14 `types/messages/message_batch.py`;
page "Batch processing" (2026-08).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from engine.prompt.numerals import exact_number, in_json
from gateway.wire import json_text

LIFETIME_S: Final = 24 * 3600.0
"""A request that has not been processed by then has expired."""

KEPT_S: Final = 29 * 24 * 3600.0
"""Results are kept for so long after the batch was created."""

PIECE_NBYTES: Final = 64 * 1024
"""Of results, read at a time."""

S = TypeVar("S", bound=msgspec.Struct)
Outcome: TypeAlias = Literal["succeeded", "errored", "canceled", "expired"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("succeeded", "errored", "canceled", "expired")


class BatchesFull(Exception):
    """The folder may hold no more bytes."""


class Batch(msgspec.Struct, kw_only=True):
    """The state of one batch; times are epoch seconds. `counts` are results by outcome."""

    id: str
    tenant: str
    num_requests: int
    created_at_s: float
    headers: dict[str, str]
    counts: dict[Outcome, int]
    cancelled_at_s: float | None = None
    ended_at_s: float | None = None

    @property
    def num_left(self) -> int:
        return self.num_requests - sum(self.counts.values())

    @property
    def status(self) -> str:
        if self.ended_at_s is not None:
            return "ended"
        return "in_progress" if self.cancelled_at_s is None else "canceling"


class BatchItem(msgspec.Struct):
    """One request of a batch: the client's name for it, and the body of a `/v1/messages`
    request."""

    custom_id: str
    params: dict[str, Any]


class _LineKind(msgspec.Struct):
    type: Outcome


class _Result(msgspec.Struct):
    """The part of a line of results that is read back."""

    custom_id: str
    result: _LineKind


class BatchStore:
    """The batches of all tenants below one folder, at most `max_nbytes` of requests and results.
    Owned by one task."""

    def __init__(self, folder: Path, max_nbytes: int) -> None:
        self._folder = folder
        self._max_nbytes = max_nbytes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._batches = {batch.id: batch for batch in self._load()}
        self._nbytes = self._measured()

    def create(self, batch: Batch, lines: bytes) -> None:
        """Take a batch in, its requests as `as_lines` writes them. Raises `BatchesFull` where the
        bound or the disk leaves no room, and nothing is kept."""
        if self._nbytes + len(lines) > self._max_nbytes:
            raise BatchesFull
        folder = self._folder_of(batch)
        try:
            folder.mkdir(parents=True, mode=0o700)
            _write(folder / "requests.jsonl", lines)
            self.save(batch)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise BatchesFull from None
        self._nbytes += len(lines)
        self._batches[batch.id] = batch

    def find(self, tenant: str, batch_id: str) -> Batch | None:
        batch = self._batches.get(batch_id)
        return batch if batch is not None and batch.tenant == tenant else None

    def of(self, tenant: str) -> list[Batch]:
        """A tenant's batches, the newest first."""
        mine = [batch for batch in self._batches.values() if batch.tenant == tenant]
        return sorted(mine, key=lambda batch: (batch.created_at_s, batch.id), reverse=True)

    def open(self) -> list[Batch]:
        """Batches of all tenants that have not ended, the oldest first."""
        return sorted(
            (b for b in self._batches.values() if b.ended_at_s is None),
            key=lambda b: b.created_at_s,
        )

    def left(self, batch: Batch) -> Iterator[BatchItem]:
        """The requests that have no result yet, in order."""
        folder = self._folder_of(batch)
        done = {found.custom_id for found in _read(folder / "results.jsonl", _Result)}
        return (
            item
            for item in _read(folder / "requests.jsonl", BatchItem)
            if item.custom_id not in done
        )

    def add(self, batch: Batch, custom_id: str, outcome: Outcome, result: dict[str, Any]) -> None:
        """Write one result, past any limit, as its request was accepted. Raises `OSError` where it
        could not be written."""
        path = self._folder_of(batch) / "results.jsonl"
        line = (
            json_text.dumps({"custom_id": custom_id, "result": {"type": outcome, **result}}) + b"\n"
        )
        try:
            with open(path, "ab", opener=_private) as file:
                file.write(line)
        except OSError:
            _mend(path)
            raise
        self._nbytes += len(line)
        batch.counts[outcome] += 1

    def end(self, batch: Batch, now_s: float) -> None:
        """Every request has a result: the batch is over."""
        batch.ended_at_s = now_s
        self.save(batch)

    def save(self, batch: Batch) -> None:
        draft = self._folder_of(batch) / "batch.new"
        _write(draft, msgspec.json.encode(batch))
        draft.replace(draft.with_name("batch.json"))

    def results(self, batch: Batch) -> Iterator[bytes]:
        """The JSONL of all results in pieces: together they may be more than fits in memory."""
        path = self._folder_of(batch) / "results.jsonl"
        if not path.exists():
            return
        left = _whole_nbytes(path)
        with path.open("rb") as file:
            while left and (piece := file.read(min(left, PIECE_NBYTES))):
                left -= len(piece)
                yield piece

    def delete(self, batch: Batch) -> None:
        """Afterwards it is not there, also where its folder was missing already. Raises `OSError`
        where the folder cannot be removed."""
        folder = self._folder_of(batch)
        if folder.exists():
            shutil.rmtree(folder)
        del self._batches[batch.id]
        self._nbytes = self._measured()

    def old(self, now_s: float) -> list[Batch]:
        """The batches whose results are no longer kept."""
        ended = (batch for batch in self._batches.values() if batch.ended_at_s is not None)
        return [batch for batch in ended if batch.created_at_s + KEPT_S <= now_s]

    def _measured(self) -> int:
        """Bytes of all files there are."""
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())

    def _folder_of(self, batch: Batch) -> Path:
        return self._folder / hashlib.sha256(batch.tenant.encode()).hexdigest()[:16] / batch.id

    def _load(self) -> Iterator[Batch]:
        """The batches on disk that can be read: a damaged one is left out, and does not keep others
        from being served."""
        for path in self._folder.glob("*/*/batch.json"):
            try:
                batch = msgspec.json.decode(path.read_bytes(), type=Batch)
            except (OSError, msgspec.MsgspecError):
                continue
            batch.counts = dict.fromkeys(OUTCOMES, 0)
            _mend(path.with_name("results.jsonl"))
            for found in _read(path.with_name("results.jsonl"), _Result):
                batch.counts[found.result.type] += 1
            yield batch


def as_lines(items: Iterable[BatchItem]) -> bytes:
    """Requests as they are kept: JSON, one in a line."""
    return b"".join(msgspec.json.encode(item, enc_hook=in_json) + b"\n" for item in items)


def as_json(batch: Batch, base: str) -> dict[str, Any]:
    """The batch as the API shows it; `base` is the URL the results are found under."""
    ended = batch.ended_at_s is not None
    counts = {"processing": batch.num_left} | {
        name: batch.counts[name] if ended else 0 for name in OUTCOMES
    }
    if not ended:
        counts["processing"] = batch.num_requests
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": batch.status,
        "request_counts": counts,
        "created_at": _time(batch.created_at_s),
        "expires_at": _time(batch.created_at_s + LIFETIME_S),
        "ended_at": _time(batch.ended_at_s),
        "cancel_initiated_at": _time(batch.cancelled_at_s),
        "archived_at": None,
        "results_url": f"{base}/v1/messages/batches/{batch.id}/results" if ended else None,
    }


def _time(at_s: float | None) -> str | None:
    return (
        None
        if at_s is None
        else datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
    )


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines; one that `kill -9` left unfinished is none."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]


def _read(path: Path, kind: type[S]) -> Iterator[S]:
    """The lines of a file, without those that are damaged."""
    decoder = msgspec.json.Decoder(kind, float_hook=exact_number)
    for line in _lines(path):
        with suppress(msgspec.MsgspecError):
            yield decoder.decode(line)


def _mend(path: Path) -> None:
    """Cut off a last line that `kill -9` left unfinished, so that the next one does not join it."""
    if path.exists():
        whole = _whole_nbytes(path)
        if whole < path.stat().st_size:
            os.truncate(path, whole)


def _whole_nbytes(path: Path) -> int:
    """Bytes of a file to the end of its last whole line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = file.seek(max(0, end - PIECE_NBYTES))
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb", opener=_private) as file:
        file.write(content)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
