"""Has grammars tried out where they may do harm, and remembers what became of those that did.
Compiles nothing itself."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final
from weakref import finalize

from engine.constrain.trial import LENGTH, TokenTable, Verdict
from engine.errors import BadFormat, Overloaded

COMMAND: Final = (sys.executable, "-m", "engine.constrain.trial")

START_S: Final = 60.0
"""Until the process has to be ready: it reads a vocabulary first."""

VERDICT_S: Final = 60.0
"""Until it has to answer, by the clock on the wall. It ends itself long before, by the CPU time it
has taken, unless the machine has no time for it."""

NUM_REFUSED: Final = 4096
"""Grammars that are remembered as harmful, the oldest goes first: one hash and one sentence
each."""

_DEATHS: Final = {
    -signal.SIGSEGV: "the grammar is nested, or refers to itself, too deeply to be compiled",
    -signal.SIGBUS: "the grammar is nested, or refers to itself, too deeply to be compiled",
    -signal.SIGPROF: "the grammar takes too long to compile",
    -signal.SIGABRT: "the grammar takes too much memory to compile",
    -signal.SIGKILL: "the grammar takes too much memory to compile",
}
_OTHER_DEATH: Final = "the grammar is too costly to be compiled"


class Trials:
    """One process at a time, started when it is first needed and again after it died. Thread-safe;
    trials follow each other."""

    def __init__(
        self, vocabulary: Callable[[], TokenTable], command: Sequence[str] = COMMAND
    ) -> None:
        self._vocabulary = vocabulary
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._running: list[subprocess.Popen[bytes]] = []
        finalize(self, _end_all, self._running)

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one now."""
        process = self._process
        return None if process is None else process.pid

    def refusal(self, grammar: str) -> str | None:
        """Why an earlier trial of this grammar went wrong; None where none did."""
        return self._refused.get(_digest(grammar))

    def nbytes(self, grammar: str) -> int:
        """The memory that a grammar takes once it is compiled.

        Raises `BadFormat`, in the compiler's words or ours, for a text that is no grammar or one
        that would do harm, and `Overloaded` if it cannot be tried out now.
        """
        with self._lock:
            refusal = self.refusal(grammar)
            verdict = Verdict(refusal, 0) if refusal is not None else self._tried(grammar)
        if verdict.error is not None:
            raise BadFormat(verdict.error)
        return verdict.nbytes

    def close(self) -> None:
        """End the process, if there is one, whatever it is doing. A later trial starts another."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _tried(self, grammar: str) -> Verdict:
        try:
            payload = grammar.encode()
        except UnicodeEncodeError:
            return Verdict("the grammar holds half of a pair of surrogates", 0)
        try:
            process = self._started()
            answer = _exchange(process, payload, VERDICT_S)
        except (OSError, TimeoutError):
            self._end()
            raise Overloaded("the form of the answer cannot be checked now") from None
        verdict = Verdict(**json.loads(answer)) if answer is not None else Verdict(self._death(), 0)
        if (
            verdict.error is not None and process.returncode != -signal.SIGKILL
        ):  # by the system, maybe not for this grammar
            self._refused[_digest(grammar)] = verdict.error
            if len(self._refused) > NUM_REFUSED:
                self._refused.popitem(last=False)
        return verdict

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, once it can try grammars out. Raises `OSError` or `TimeoutError`."""
        if self._process is not None and self._process.poll() is not None:
            self._end()  # killed while it was idle
        if self._process is None:
            vocabulary = json.dumps(asdict(self._vocabulary())).encode()
            self._process = subprocess.Popen(  # noqa: S603  this package's own module
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the compiler's panics quote the grammar
                env={
                    **os.environ,
                    "MALLOC_ARENA_MAX": "1",
                },  # so that its memory can be counted, and bounded closely
            )
            self._running[:] = [self._process]
            if _exchange(self._process, vocabulary, START_S) is None:
                raise OSError("the process of trials did not start")
        return self._process

    def _death(self) -> str:
        """The cause of death of a process that broke off, in words for the client."""
        process, self._process = self._process, None
        self._running.clear()
        assert process is not None
        _close(process)
        return _DEATHS.get(process.returncode, _OTHER_DEATH)

    def _end(self) -> None:
        self._process = None
        _end_all(self._running)


def _end_all(running: list[subprocess.Popen[bytes]]) -> None:
    """End what still runs, and forget it."""
    while running:
        process = running.pop()
        process.kill()
        _close(process)


def _exchange(process: subprocess.Popen[bytes], payload: bytes, timeout_s: float) -> bytes | None:
    """Send one frame and wait for the answer; None where the process died instead. Raises
    `TimeoutError`."""
    deadline_s = time.monotonic() + timeout_s
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(LENGTH.pack(len(payload)) + payload)
        process.stdin.flush()
    header = _read(process, LENGTH.size, deadline_s)
    return None if header is None else _read(process, LENGTH.unpack(header)[0], deadline_s)


def _read(process: subprocess.Popen[bytes], nbytes: int, deadline_s: float) -> bytes | None:
    assert process.stdout is not None
    descriptor, data, waiting = process.stdout.fileno(), b"", select.poll()
    waiting.register(descriptor, select.POLLIN)
    while len(data) < nbytes:
        if not waiting.poll(max(0.0, 1000 * (deadline_s - time.monotonic()))):
            raise TimeoutError
        more = os.read(descriptor, nbytes - len(data))
        if not more:
            return None
        data += more
    return data


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a process that is dying, and wait until it is dead."""
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with suppress(BrokenPipeError):
            stream.close()
    process.wait()


def _digest(grammar: str) -> bytes:
    return hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
