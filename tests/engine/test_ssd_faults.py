"""Two hundred requests over a disk that lies, fails, is full or silent: the cold answers, no waits,
and the operator knows."""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.store.disk.layout import Layout
from engine.store.disk.store import DiskStore
from engine.store.object import HEADER_NBYTES, decode_header, encode_header
from tests.fakes.crowd import NUM_PAGES, NUM_PROMPTS, Desk, Told, asked
from tests.fakes.events import PATIENCE_S
from tests.fakes.faulty_files import FaultyFiles
from tests.fakes.runner import FakeRunner

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
BEFORE, NOW = "Which one is it?", "How high is it above the sea?"
"""What was asked when the objects were written, and what is asked while there is a fault."""


class OtherModel(FakeRunner):
    """All bits of its KV are others."""

    def __init__(self) -> None:
        super().__init__(num_pages=NUM_PAGES)
        self.fingerprint = "another model"

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        return memoryview(bytes(byte ^ 255 for byte in super().read_pages(pages)))


class OtherDtype(FakeRunner):
    """Its KV takes half the bytes."""

    def __init__(self) -> None:
        super().__init__(num_pages=NUM_PAGES)
        self.fingerprint = "another dtype"
        self.page_nbytes //= 2

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        self._pages[target][:] = self._pages[source]

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        return memoryview(bytes(super().read_pages(pages))[::2])


@dataclass(frozen=True, slots=True)
class Stock:
    """A folder with all prompts, and the keys of its objects as they were written: the same place
    is the same tokens."""

    root: Path
    keys: list[bytes]


Stocks = Callable[[str], Stock]
"""By whose objects they are: `own`, or another `tenant`, `model` or `dtype`."""


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> Stocks:
    """Every folder is written once, when it is first asked for."""

    @functools.cache
    def stock(whose: str) -> Stock:
        root = tmp_path_factory.mktemp(whose) / "kv"
        runner = {"model": OtherModel, "dtype": OtherDtype}.get(
            whose, lambda: FakeRunner(num_pages=NUM_PAGES)
        )()
        with DiskStore(root, nbytes=64 * MIB) as store:
            with asked(store, runner, inline=True) as desk:
                desk.ask_all(BEFORE, tenant="other" if whose == "tenant" else "t")
            return Stock(root, [key for key, _ in store.scan()])

    return stock


@pytest.fixture(scope="module")
def cold() -> list[list[int]]:
    """The answers of an engine without tiers."""
    with asked(None) as desk:
        return [list(told.token_ids) for told in desk.ask_all(NOW)]


@dataclass(slots=True)
class Disk:
    """A copy of our own stock that an engine has open."""

    root: Path
    files: FaultyFiles
    stocks: Stocks
    healed: threading.Event

    def spoil(self, change: Callable[[Path], None]) -> None:
        """Every stored object."""
        for key in self.stocks("own").keys:
            change(Layout(self.root).path(key))

    def replace(self, whose: str) -> None:
        """Put the objects of others under the names of ours, with headers that fit."""
        other = self.stocks(whose)
        for key, other_key in zip(self.stocks("own").keys, other.keys, strict=True):
            path = Layout(self.root).path(key)
            header = decode_header(path.read_bytes())
            assert header is not None
            payload = Layout(other.root).path(other_key).read_bytes()[HEADER_NBYTES:]
            path.write_bytes(
                encode_header(key, payload, header.expires_at_s, header.recompute_cost) + payload
            )

    def hang(self) -> None:
        """Reads return when all is over."""
        self.files.hooks["read_object"] = self.wait

    def wait(self) -> None:
        assert self.healed.wait(PATIENCE_S)

    def heal(self) -> None:
        """The medium works again; what was spoiled stays so."""
        self.files.heal()
        self.healed.set()


@pytest.fixture
def disk(stocks: Stocks, tmp_path: Path) -> Iterator[Disk]:
    """Healed at the end, so that no thread stays behind."""
    shutil.copytree(stocks("own").root, tmp_path / "kv")
    made = Disk(tmp_path / "kv", FaultyFiles(), stocks, threading.Event())
    yield made
    made.heal()


def flip_one_bit(path: Path) -> None:
    """In the middle of the payload."""
    data = bytearray(path.read_bytes())
    data[(HEADER_NBYTES + len(data)) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@dataclass(frozen=True, slots=True)
class Fault:
    """How it begins; the counter, what it says at least, and the words in the log that tell the
    operator; whether what is below is read all the same."""

    begin: Callable[[Disk], None]
    counter: str
    least: int
    words: str
    is_read: bool = False


MOST = NUM_PROMPTS * 9 // 10
"""On a busy machine some requests find that a sound disk does not answer in time."""
DAMAGED = "a tier gave back a damaged or foreign object"
BROKEN = "the ssd tier does not work"
WRITES = ("write_new", "rename", "unlink", "overwrite", "make_folder")
FAULTS = {
    "flipped": Fault(
        lambda disk: disk.spoil(flip_one_bit), "tier_ssd_corrupt_total", MOST, DAMAGED
    ),
    "truncated": Fault(lambda disk: disk.spoil(truncate), "tier_ssd_corrupt_total", MOST, DAMAGED),
    "of another model": Fault(
        lambda disk: disk.replace("model"), "tier_ssd_corrupt_total", MOST, DAMAGED
    ),
    "of another dtype": Fault(
        lambda disk: disk.replace("dtype"), "tier_ssd_corrupt_total", MOST, DAMAGED
    ),
    "of another tenant": Fault(
        lambda disk: disk.replace("tenant"), "tier_ssd_corrupt_total", MOST, DAMAGED
    ),
    "unreadable": Fault(
        lambda disk: disk.files.fail("read_object", code=errno.EIO),
        "cache_lost_reads_total",
        MOST // 2,
        BROKEN,
    ),
    "full": Fault(
        lambda disk: disk.files.fail("write_new", code=errno.ENOSPC),
        "tier_ssd_dropped_writes_total",
        MOST,
        BROKEN,
        is_read=True,
    ),
    "read-only": Fault(
        lambda disk: disk.files.fail(*WRITES, code=errno.EROFS),
        "tier_ssd_dropped_writes_total",
        MOST,
        BROKEN,
        is_read=True,
    ),
    "silent": Fault(Disk.hang, "tier_ssd_late_total", 1, "a tier does not answer in time"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_two_hundred_requests(
    name: str, disk: Disk, cold: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """It begins under a running engine: of half of the prefixes it has read the entries, and
    promises to read their KV; of the others it finds out below."""
    fault = FAULTS[name]
    caplog.set_level(logging.INFO, "engine")
    with DiskStore(disk.root, nbytes=64 * MIB, files=disk.files) as store, asked(store) as desk:
        for number in range(0, NUM_PROMPTS, 2):
            desk.ask(number, BEFORE)
        fault.begin(disk)
        answers = desk.ask_all(NOW)
        check_answers(answers, cold)
        assert num_read(answers) >= MOST if fault.is_read else num_read(answers) == 0
        assert desk.stats().counters[fault.counter] >= fault.least
        assert (
            1 <= len([line for line in caplog.messages if fault.words in line]) <= 3
        )  # one a minute
        disk.heal()
        check_comes_back(desk)
    assert ("the ssd tier works again" in caplog.messages) == (fault.words == BROKEN)
    store.check()


def test_two_hundred_requests_after_a_kill(cold: list[list[int]], tmp_path: Path) -> None:
    """Of a process killed while it wrote an object, what was whole is read, the rest computed, and
    nothing else is left."""
    command = [sys.executable, "-m", "tests.fakes.crowd", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("*.part"))) == 1
    with DiskStore(tmp_path, nbytes=64 * MIB) as store, asked(store) as desk:
        assert list(tmp_path.rglob("*.part")) == []
        answers = desk.ask_all(NOW)
        check_answers(answers, cold)
        assert 0 < num_read(answers) < NUM_PROMPTS
        assert desk.stats().counters["tier_ssd_corrupt_total"] == 0
        check_comes_back(desk)
    store.check()


def check_answers(answers: list[Told], cold: list[list[int]]) -> None:
    """Token by token the cold ones, and hardly any waited for what did not come."""
    assert [list(told.token_ids) for told in answers] == cold
    assert statistics.quantiles([told.wasted_s for told in answers], n=100)[-1] < 0.3


def num_read(answers: list[Told]) -> int:
    """Answers for which anything came from below."""
    return sum("ssd" in told.tiers for told in answers)


def check_comes_back(desk: Desk) -> None:
    """Four prompts, asked in turn over a device for two, are read from the tier as soon as it has
    them, and it is up."""
    deadline_s = time.monotonic() + PATIENCE_S
    for turn in itertools.count():
        is_hit = "ssd" in desk.ask(turn % 4, NOW).tiers
        if is_hit and desk.stats().gauges["tier_ssd_up"] == 1:
            return
        assert time.monotonic() < deadline_s, "the tier did not come back"
