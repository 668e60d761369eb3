"""The worker: frames over real sockets, and real processes that start, refuse, serve and end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.frames import FrameWriter
from engine.messages import (
    LENGTH,
    PROTOCOL_VERSION,
    Abort,
    Count,
    Counted,
    EngineStats,
    Failed,
    Finished,
    Flush,
    Flushed,
    FromEngine,
    Hello,
    Pin,
    Pinned,
    Snapshot,
    Started,
    Submit,
    TextDelta,
    Tick,
    ToEngine,
    decode_from_engine,
    encode_frame,
)
from engine.native.library import why_not_native
from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart
from engine.store.disk.kind import SsdSpec
from engine.types import CachePlan, CacheReport, PlannedEntry, Sampling
from engine.worker import ExitReason, serve, stop_reading
from tests.fakes.harness import MakeEngine, Wiring
from tests.fakes.runner import FakeRunner

PATIENCE_S = 120.0
SYSTEM = Position("system", 0)


class Peer:
    """The gateway's side of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self._sock = sock
        self._stream = sock.makefile("rb")

    def send(self, *messages: ToEngine) -> None:
        self._sock.sendall(b"".join(map(encode_frame, messages)))

    def receive(self) -> FromEngine | None:
        """The next message, None at the end."""
        header = self._stream.read(LENGTH.size)
        return decode_from_engine(self._stream.read(*LENGTH.unpack(header))) if header else None

    def receive_answer(self, request_id: str) -> list[FromEngine]:
        """All events of one request, when no other is in flight."""
        events: list[FromEngine] = []
        while not events or not isinstance(events[-1], Finished | Failed):
            event = self.receive()
            assert event is not None
            assert not isinstance(event, Hello)
            assert event.request_id == request_id
            events.append(event)
        return events

    def close(self) -> None:
        self._stream.close()
        self._sock.close()


def submit(request_id: str, text: str = "Hello", *, max_tokens: int = 5) -> Submit:
    prompt = Prompt(
        (Message("user", (TextPart(text),)),),
        system=(TextPart("You are terse. " * 20, CacheMark(300.0)),),
    )
    plan = CachePlan(readable=(SYSTEM,), writable=(PlannedEntry(SYSTEM, 300.0),))
    return Submit(
        request_id, "t", prompt, plan, Sampling(max_tokens=max_tokens, temperature=0.0), 1000.0
    )


# In this process, without torch -------------------------------------------------------------------


class Served:
    """An engine behind one end of a socket pair, served by a thread; `exit` is there after
    `join`."""

    def __init__(self, make_engine: MakeEngine, **options: object) -> None:
        ours, theirs = socket.socketpair()
        self.peer = Peer(theirs)
        self.exit: ExitReason | None = None
        self._sock = ours
        self._writer = FrameWriter(ours)
        self.harness = make_engine(
            FakeRunner(num_pages=256),
            Wiring(emit=self._writer.write, on_fatal=lambda error: stop_reading(ours)),
            context=1000,
            **options,
        )
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        self.exit = serve(self.harness.engine, self._sock, self._writer)

    def join(self) -> None:
        self._thread.join(PATIENCE_S)

    def close(self) -> None:
        self.peer.close()
        self.join()
        self._writer.close(timeout_s=0)
        self._sock.close()


@pytest.fixture
def served(make_engine: MakeEngine) -> Iterator[Served]:
    made = Served(make_engine)
    yield made
    made.close()


def test_a_request_over_the_socket(served: Served) -> None:
    """Frames in, events out, in order."""
    served.peer.send(Tick(1000.0), submit("a"))
    events = served.peer.receive_answer("a")
    assert isinstance(events[0], Started)
    assert all(isinstance(event, TextDelta) for event in events[1:-1])
    assert isinstance(events[-1], Finished)
    assert events[-1].num_output == 5


def test_questions_over_the_socket(served: Served) -> None:
    """Counts, snapshots, flushes and pins are answered under their ids; an abort of nothing is
    not."""
    kinds: dict[str, type] = {}
    served.peer.send(
        Abort("x"), Count("c", submit("").prompt), Snapshot("s"), Flush("f"), Pin("p", bytes(32))
    )
    while len(kinds) < 4:
        event = served.peer.receive()
        assert isinstance(event, Counted | EngineStats | Flushed | Pinned)
        kinds[event.request_id] = type(event)
    assert kinds == {"c": Counted, "s": EngineStats, "f": Flushed, "p": Pinned}


def test_what_the_engine_refuses_is_answered(make_engine: MakeEngine) -> None:
    """A full engine and an id in flight get `Failed`, the others are served."""
    served = Served(make_engine, max_queue=1, max_sequences=1)
    arrived, may_go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        arrived.set()
        may_go.wait(PATIENCE_S)

    served.harness.runner.before_step = hold
    served.peer.send(submit("a"))
    arrived.wait(PATIENCE_S)
    served.peer.send(submit("b"), submit("c"))
    started = served.peer.receive()
    assert isinstance(started, Started)
    refused = served.peer.receive()
    assert isinstance(refused, Failed)
    assert (refused.request_id, refused.kind) == ("c", "overloaded")
    may_go.set()
    ended: list[str] = []
    while len(ended) < 2:
        event = served.peer.receive()
        if isinstance(event, Finished):
            ended.append(event.request_id)
    assert ended == ["a", "b"]
    served.close()


def test_the_end_of_the_peer_is_the_end(served: Served) -> None:
    """A closed socket ends serving, cleanly, with a request in flight."""
    served.peer.send(submit("a", max_tokens=500))
    assert isinstance(served.peer.receive(), Started)
    served.peer.close()
    served.join()
    assert served.exit is ExitReason.CLEAN


def test_an_unreadable_frame_is_the_end(served: Served) -> None:
    """A peer that speaks something else can't be followed."""
    served.peer._sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    served.join()
    assert served.exit is ExitReason.PROTOCOL


def test_a_fatal_error_ends_serving(served: Served) -> None:
    """Everybody in flight is told first."""

    def fail(_: object) -> None:
        raise MemoryError

    served.harness.runner.before_step = fail
    served.peer.send(submit("a"))
    events = served.peer.receive_answer("a")
    assert isinstance(events[-1], Failed)
    served.join()
    assert served.exit is ExitReason.FATAL


# Real processes -----------------------------------------------------------------------------------


@contextmanager
def worker(config_json: bytes) -> Iterator[tuple[subprocess.Popen[bytes], Peer]]:
    """A worker process that has connected. It must have ended by the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="pcg-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = str(Path(folder) / "s")
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(PATIENCE_S)
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.worker", path],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdin is not None
            process.stdin.write(config_json)
            process.stdin.close()
            sock, _ = listener.accept()
            peer = Peer(sock)
            yield process, peer
            peer.close()
            assert process.wait(PATIENCE_S) is not None
        finally:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def config(model_path: Path, **options: object) -> EngineConfig:
    sizes = {"context": 1024, "kv_nbytes": 64 * 1024**2, **options}
    return EngineConfig(
        model="m", model_path=str(model_path), root_secret=b"0123456789abcdef", **sizes
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config_json",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"model": "m"}', id="incomplete"),
        pytest.param(
            b'{"model": "m", "model_path": "/", "root_secret": "c2hvcnQ="}', id="secret too short"
        ),
        pytest.param(msgspec.json.encode(config(Path("/nowhere"))), id="no such folder"),
    ],
)
def test_what_cannot_be_loaded_is_said(config_json: bytes) -> None:
    """One `Failed` with an empty id, exit status 3, and JSON lines on standard error."""
    with worker(config_json) as (process, peer):
        failed = peer.receive()
        assert isinstance(failed, Failed)
        assert (failed.request_id, failed.kind) == ("", "internal")
        assert failed.message
        assert peer.receive() is None
        assert process.wait(PATIENCE_S) == ExitReason.LOAD_FAILED
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert [msgspec.json.decode(line)["event"] for line in lines] == ["loading failed"]


def test_nobody_listening_is_an_error() -> None:
    """A worker without a parent doesn't load anything."""
    done = subprocess.run(
        [sys.executable, "-m", "engine.worker", "/nowhere/s"],
        input=b"{}",
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert b"FileNotFoundError" in done.stderr


@pytest.mark.engine
def test_a_process_serves_the_default_model(default_model: Path) -> None:
    """Hello, a cold and a warm request with the same answer, and a clean end on SIGTERM; ctrl-C is
    not for it."""
    with worker(msgspec.json.encode(config(default_model, exact="on"))) as (process, peer):
        hello = peer.receive()
        assert isinstance(hello, Hello)
        assert (hello.protocol_version, hello.model, hello.context) == (PROTOCOL_VERSION, "m", 1024)
        assert hello.capabilities.exact
        exact_runner = "native" if why_not_native() is None else "generic"
        assert (hello.capabilities.runner, hello.capabilities.device) == (exact_runner, "cpu")
        answers = []
        for name in ("cold", "warm"):
            peer.send(submit(name, "Name three colours.", max_tokens=8))
            events = peer.receive_answer(name)
            assert isinstance(events[0], Started)
            answers.append(
                (
                    events[0].report.skipped > 0,
                    "".join(e.text for e in events if isinstance(e, TextDelta)),
                )
            )
        assert [skipped for skipped, _ in answers] == [False, True]
        assert answers[0][1] == answers[1][1] != ""
        process.send_signal(signal.SIGINT)
        peer.send(Count("c", submit("c").prompt))
        assert isinstance(peer.receive(), Counted)
        peer.send(submit("long", max_tokens=500))
        assert isinstance(peer.receive(), Started)
        begin_s = time.monotonic()
        process.terminate()
        assert process.wait(PATIENCE_S) == ExitReason.CLEAN
        assert time.monotonic() - begin_s < 10


@pytest.mark.engine
def test_a_worker_never_outlives_its_parent(served_model: Path) -> None:
    """When the socket closes the process ends, also in the middle of an answer."""
    with worker(msgspec.json.encode(config(served_model))) as (process, peer):
        assert isinstance(peer.receive(), Hello)
        peer.send(submit("long", max_tokens=500))
        assert isinstance(peer.receive(), Started)
        peer.close()
        assert process.wait(PATIENCE_S) == ExitReason.CLEAN


@pytest.mark.engine
@pytest.mark.slow
def test_a_killed_worker_leaves_what_the_next_one_reads(served_model: Path, tmp_path: Path) -> None:
    """After kill -9 a new process reads the entry from its files: the same answer, the same time
    left, not computed again."""
    config_json = msgspec.json.encode(
        config(served_model, exact="on", tiers=(SsdSpec(str(tmp_path), 256 * 1024**2),))
    )
    before, after = ask_and_kill(config_json), ask_and_kill(config_json)
    for _ in range(5):
        if not after.was_late:  # on a busy machine a read may be, and is computed then
            break
        after = ask_and_kill(config_json)
    assert before.text == after.text != ""
    hit = after.report.hit
    assert hit is not None
    assert hit.offset == before.report.boundaries[0].offset
    assert hit.ttl_left_s == 300.0
    assert after.report.tiers == {"ssd": after.report.skipped}


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker said before it was killed."""

    report: CacheReport
    text: str
    was_late: bool


def ask_and_kill(config_json: bytes) -> Told:
    """One question to a worker of its own, killed as soon as it has written what it should."""
    with worker(config_json) as (process, peer):
        assert isinstance(peer.receive(), Hello)
        peer.send(submit("one", "Name three colours.", max_tokens=8))
        events = peer.receive_answer("one")
        assert isinstance(events[0], Started)
        gauges, was_late = {"engine_open": 1.0}, False
        while (
            gauges["engine_open"] or gauges["cache_unwritten"] or gauges["tier_ssd_queued_nbytes"]
        ):
            peer.send(Snapshot("s"))
            snapshot = peer.receive()
            assert isinstance(snapshot, EngineStats)
            gauges, was_late = snapshot.gauges, snapshot.counters["cache_late_reads_total"] > 0
        process.kill()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    return Told(
        events[0].report, "".join(e.text for e in events if isinstance(e, TextDelta)), was_late
    )
