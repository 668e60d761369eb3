"""A process in which grammars are tried out:

`python -m engine.constrain.trial`. It may die of any of them; nobody else does.

The grammar compiler is native code without bounds on recursion, and with few on time and memory.
Here it has a smaller stack, less time and less memory than a worker gives it, so what passes here
passes there. A grammar is compiled, followed for some random tokens, and dropped. Standard input
and output carry frames: a little-endian uint32 length and that many bytes of UTF-8. The first one
in is a `TokenTable` as JSON, every other one a grammar, answered by a `Verdict` as JSON.

Imports nothing but the compiler: this must be quick to start, and cheap to lose.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import BinaryIO, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

LENGTH: Final = struct.Struct("<I")

STACK_NBYTES: Final = 4 * 1024**2
"""Of the thread that compiles; a worker's have several times as much."""

MEMORY_NBYTES: Final = 256 * 1024**2
"""The peak memory of compiling one grammar, besides the vocabulary."""

KEPT_NBYTES: Final = 32 * 1024**2
"""The memory that a compiled grammar may keep."""

CPU_S: Final = 2.0
"""Of compiling and following one grammar."""

MASK_CPU_S: Final = 0.25
"""Of one mask, for which a whole step of the model waits."""

NUM_WALKS, NUM_STEPS = 2, 24
"""Random answers that are followed, and their tokens at most."""

MAX_LEXER_STATES: Final = 50_000
"""The lexer's states are built as answers are made, at 1 to 2 kB each."""


def limits() -> LLParserLimits:
    """The compiler's own limits, the same here and in a worker.

    Verbose errors would quote the generated text.
    """
    return LLParserLimits(verbose_errors=False, max_lexer_states=MAX_LEXER_STATES)


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of every token (as Latin-1), the ids of control tokens, and of those that end an
    answer."""

    tokens: list[str]
    special_ids: list[int]
    stop_ids: list[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of trying out one grammar.

    `error` is the compiler's message, None for a sound grammar. `nbytes` is the memory that the
    grammar takes after it was compiled and followed.
    """

    error: str | None
    nbytes: int


class _TokenSource:
    """The tokenizer interface that `TokenizerWrapper` expects.

    It does not tokenize forced text, because a trial only computes masks.
    """

    def __init__(self, vocabulary: TokenTable) -> None:
        self.eos_token_id: Final = min(vocabulary.stop_ids)
        self.bos_token_id: Final = None
        self.tokens: Final = [token.encode("latin-1") for token in vocabulary.tokens]
        self.special_token_ids: Final = vocabulary.special_ids

    def __call__(self, text: str | bytes) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("only text has tokens")
        return []


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end."""
    header = stream.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    (nbytes,) = LENGTH.unpack(header)
    payload = stream.read(nbytes)
    return payload if len(payload) == nbytes else None


def write_frame(stream: BinaryIO, payload: bytes) -> None:
    stream.write(LENGTH.pack(len(payload)) + payload)
    stream.flush()


def _verdict(vocabulary: LLTokenizer, grammar: str) -> Verdict:
    """Of one grammar, within the limits of stack and time: past them this process ends."""
    verdicts = list[Verdict]()
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    thread = threading.Thread(target=lambda: verdicts.append(_try(vocabulary, grammar)))
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    if not verdicts:  # the compiler panicked
        os._exit(1)
    return verdicts[0]


def _try(vocabulary: LLTokenizer, grammar: str) -> Verdict:
    before = allocated()
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        return Verdict(matcher.get_error(), 0)
    nbytes = 0
    for seed in range(NUM_WALKS):
        walked = matcher.deep_copy()
        problem = _walk(walked, random.Random(seed))  # noqa: S311  chooses tokens, no secrets
        if problem is not None:
            return Verdict(problem, 0)
        nbytes = max(nbytes, allocated() - before)
    if nbytes > KEPT_NBYTES:
        return Verdict("the grammar takes too much memory", nbytes)
    return Verdict(None, nbytes)


def _walk(matcher: LLMatcher, dice: random.Random) -> str | None:
    """Follow one random answer; what of it would hold up a step of the model. An answer that leads
    nowhere is no harm: whoever gives it is told."""
    for _ in range(NUM_STEPS):
        began_s = time.thread_time()
        mask = matcher.compute_bitmask()
        if time.thread_time() - began_s > MASK_CPU_S:
            return "the grammar takes too long to follow"
        token_id = _drawn(mask, dice)
        if token_id is None or not matcher.consume_token(token_id) or matcher.is_stopped():
            return None
    return None


def _drawn(mask: bytes, dice: random.Random) -> int | None:
    """One of the tokens that a mask allows; None where it allows none."""
    start = dice.randrange(len(mask))
    for first, part in ((start, mask[start:]), (0, mask)):
        found = part.lstrip(b"\0")
        if found:
            byte = first + len(part) - len(found)
            return 8 * byte + dice.choice([bit for bit in range(8) if found[0] >> bit & 1])
    return None


class _Allocated(ctypes.Structure):
    """glibc's `mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _allocator() -> Callable[[], int]:
    """A counter of the bytes in use: exact with glibc, else the pages of this process."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return lambda: _pages(1)
    mallinfo.restype = _Allocated

    def count() -> int:
        usage = mallinfo()
        return int(usage.uordblks + usage.hblkhd)

    return count


def _pages(field: int) -> int:
    """A field of /proc/self/statm in bytes: 0 is the address space, 1 what of it is in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[field]) * resource.getpagesize()


allocated: Final = _allocator()


def _confine() -> None:
    """No core files, the first to go when the machine runs out of memory, and no more memory than a
    trial may take."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:  # not everywhere; the limit below holds all the same
        pass
    most = _pages(0) + MEMORY_NBYTES + STACK_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Answer requests on standard output until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    payload = read_frame(requests)
    if payload is None:
        return
    known = TokenTable(**json.loads(payload))
    vocabulary = LLTokenizer(TokenizerWrapper(_TokenSource(known)), eos_token=known.stop_ids)
    threading.stack_size(STACK_NBYTES)
    _confine()
    write_frame(replies, b"ready")
    while (payload := read_frame(requests)) is not None:
        write_frame(replies, json.dumps(asdict(_verdict(vocabulary, payload.decode()))).encode())


if __name__ == "__main__":
    main()
