"""Interleaved conversations with codewords through one engine,
compared with another that caches nothing.

Knows no model and no tier: both engines are given. Answers are greedy, so in exact mode they are
equal or something is wrong.
"""

from __future__ import annotations

import os
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.config import EngineConfig
from engine.core import Engine
from engine.messages import (
    Count,
    Counted,
    EngineStats,
    Failed,
    Finished,
    FromEngine,
    Hello,
    Snapshot,
    Started,
    Submit,
    TextDelta,
)
from engine.prompt.types import Message, Prompt, TextPart
from engine.schedule.runner import Runner
from engine.types import CachePlan, CacheReport, PlannedEntry, Sampling
from engine.worker import build_engine

ANSWER_S: Final = 120.0
"""Far longer than any answer takes."""
SAMPLE_S: Final = 0.05
SECTOR_NBYTES: Final = 512
"""The unit of `st_blocks`."""
TURN_S: Final = 7.0
"""How far the conversations' own clock moves with every turn."""
TTLS_S: Final = (60.0, 300.0)
"""Conversations take turns with these: some entries expire between two turns, others never do."""

UNCACHED: Final = CachePlan(read=False, store=False)
SHARED: Final = (
    "You keep a lighthouse, and you answer every question about it in one short sentence. "
)
QUESTIONS: Final = (
    "What is your codeword?",
    "Say your codeword.",
    "Tell me the codeword again.",
    "Which codeword is yours?",
)
NAMES: Final = (
    *(
        "Juniper",
        "Obsidian",
        "Marigold",
        "Tamarind",
        "Periwinkle",
        "Saffron",
        "Quartz",
        "Heron",
        "Larkspur",
        "Cinnabar",
    ),
    *(
        "Foxglove",
        "Basalt",
        "Kestrel",
        "Turmeric",
        "Onyx",
        "Sorrel",
        "Gannet",
        "Yarrow",
        "Feldspar",
        "Bramble",
    ),
)


@dataclass(frozen=True, slots=True)
class SoakSizes:
    """How much is asked. `context` tokens hold the longest conversation with its answer of
    `max_tokens`."""

    num_turns: int
    context: int
    max_tokens: int
    num_conversations: int = len(NAMES)
    num_together: int = 3
    num_shared: int = 8
    num_own: int = 14
    """Sentences that all system texts begin with, then sentences with the codeword."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request was told."""

    text: str
    token_ids: tuple[int, ...]
    report: CacheReport


@dataclass(slots=True)
class Findings:
    """What a soak saw. Bytes of the SSD folder are the most `du` ever showed; `leaks` names gauges
    that are not 0.

    `least_prompt` is the length of the shortest prompt.
    """

    num_turns: int = 0
    num_prompt_tokens: int = 0
    least_prompt: int = sys.maxsize
    num_unequal: int = 0
    num_foreign: int = 0
    num_own: int = 0
    num_tokens_by_tier: Counter[str] = field(default_factory=Counter)
    most_ssd_nbytes: int = 0
    most_gauges: dict[str, float] = field(default_factory=dict)
    grown_nbytes: int = 0
    leaks: dict[str, float] = field(default_factory=dict)
    stats: EngineStats | None = None


class Asked:
    """An engine that is asked by one thread. Events come from the engine's threads."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._num_asked = 0

    def take(self, event: FromEngine) -> None:
        """Called by the engine, from any thread."""
        self._events.put(event)

    def use(self, engine: Engine) -> None:
        """The engine that tells `take`."""
        self._engine = engine

    def answers(self, requests: Sequence[Submit]) -> list[Answer]:
        """Everything that these requests, handed in at once, are answered. Raises `RuntimeError`
        when one fails."""
        names = {self._name(): request for request in requests}
        for name, request in names.items():
            self._running.submit(
                Submit(
                    name,
                    request.tenant,
                    request.prompt,
                    request.plan,
                    request.sampling,
                    request.started_at_s,
                )
            )
        told: dict[str, list[FromEngine]] = {name: [] for name in names}
        num_open = len(names)
        while num_open:
            event = self._next()
            assert not isinstance(event, Hello)
            told[event.request_id].append(event)
            num_open -= isinstance(event, Finished)
        return [_answer(events) for events in told.values()]

    def count(self, prompt: Prompt) -> int:
        """Tokens of a prompt."""
        self._running.count(Count(self._name(), prompt))
        event = self._next()
        assert isinstance(event, Counted)
        return event.num_prompt

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        self._running.ask(Snapshot(self._name()))
        event = self._next()
        assert isinstance(event, EngineStats)
        return event

    @property
    def _running(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _name(self) -> str:
        self._num_asked += 1
        return str(self._num_asked)

    def _next(self) -> FromEngine:
        event = self._events.get(timeout=ANSWER_S)
        if isinstance(event, Failed):
            raise RuntimeError(f"a request failed: {event.kind}: {event.message}")
        return event


def _answer(events: Sequence[FromEngine]) -> Answer:
    deltas = [event for event in events if isinstance(event, TextDelta)]
    (started,) = (event for event in events if isinstance(event, Started))
    token_ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
    return Answer("".join(delta.text for delta in deltas), token_ids, started.report)


@contextmanager
def answering(config: EngineConfig, runner: Runner | None = None) -> Iterator[Asked]:
    """An engine in this process, of the configured model or around a runner, for the length of the
    block."""
    asked = Asked()
    with build_engine(config, asked.take, runner=runner) as engine:
        asked.use(engine)
        yield asked


class Watch:
    """The most that a folder was seen to occupy at one moment, and the most memory of a process, in
    bytes."""

    def __init__(self, folder: Path, process: str = "self") -> None:
        self.most_nbytes = 0
        self.most_resident_nbytes = 0
        self._folder = folder
        self._memory = Path("/proc") / process / "statm"

    def look(self) -> None:
        """One walk through a folder that changes meanwhile may count a file twice, or one that made
        room for another. What two walks both see was there between them."""
        before, after = _occupied(self._folder), _occupied(self._folder)
        self.most_nbytes = max(
            self.most_nbytes,
            sum(min(nbytes, after.get(name, 0)) for name, nbytes in before.items()),
        )
        self.most_resident_nbytes = max(self.most_resident_nbytes, self.resident_nbytes())

    def resident_nbytes(self) -> int:
        """Pages of the process that are in memory now, in bytes. Linux alone tells."""
        return int(self._memory.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _occupied(folder: Path) -> dict[tuple[int, int], int]:
    """Allocated bytes of everything in a folder, itself included, by inode and time of the last
    write."""
    found = {}
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            with suppress(OSError):  # gone meanwhile
                stat = os.lstat(path)
                found[stat.st_ino, 0 if path == parent else stat.st_mtime_ns] = (
                    stat.st_blocks * SECTOR_NBYTES
                )
    return found


@contextmanager
def watching(folder: Path, process: int | None = None) -> Iterator[Watch]:
    """Looks at the folder and at a process, this one unless said, twenty times a second while the
    block lasts."""
    watch, over = Watch(folder, "self" if process is None else str(process)), threading.Event()

    def run() -> None:
        while not over.wait(SAMPLE_S):
            watch.look()

    watcher = threading.Thread(target=run, name="watch")
    watcher.start()
    try:
        yield watch
    finally:
        over.set()
        watcher.join()


class Conversation:
    """One conversation that knows a codeword no other knows. It starts over when it is about to
    outgrow the context."""

    def __init__(self, index: int, sizes: SoakSizes) -> None:
        self.codeword = f"{NAMES[index % len(NAMES)]}-{4001 + 37 * index}"
        self.tenant = f"tenant {index % 2}"
        self._ttl_s = TTLS_S[index // 2 % len(TTLS_S)]
        own = f"The codeword is {self.codeword}. When you are asked for it, say {self.codeword}. "
        self._system = TextPart(SHARED * sizes.num_shared + own * sizes.num_own)
        self._sampling = Sampling(max_tokens=sizes.max_tokens, temperature=0.0)
        self._messages: list[Message] = []

    def ask(self, question: str) -> None:
        """Add a question."""
        self._messages.append(Message("user", (TextPart(question),)))

    def hear(self, answer: Answer) -> None:
        """Add the answer."""
        self._messages.append(Message("assistant", (TextPart(answer.text),)))

    def start_over(self) -> None:
        """Forget all but the last question."""
        del self._messages[:-1]

    @property
    def prompt(self) -> Prompt:
        return Prompt(tuple(self._messages), system=(self._system,))

    def request(self, now_s: float, *, cached: bool) -> Submit:
        """The last question with everything before it: marked after the system text and at its end,
        or kept out of all caches."""
        positions = [position for position, _ in self.prompt.positions()]
        written = tuple(
            PlannedEntry(position, self._ttl_s) for position in (positions[0], positions[-1])
        )
        plan = CachePlan(
            readable=tuple(reversed(positions)), writable=written, unmarked_ttl_s=self._ttl_s
        )
        return Submit(
            "", self.tenant, self.prompt, plan if cached else UNCACHED, self._sampling, now_s
        )


def soak(
    asked: Asked,
    uncached: Asked,
    sizes: SoakSizes,
    watch: Watch,
    progress: Callable[[Findings], None] = lambda findings: None,
) -> Findings:
    """Ask `num_turns` questions, a few conversations at once and each of them in any order; compare
    and watch. `progress` hears after each round what was found so far."""
    chance, findings = random.Random(20_261_130), Findings()
    talks = [Conversation(i, sizes) for i in range(sizes.num_conversations)]
    begin_s, resident = time.time(), list[int]()
    while findings.num_turns < sizes.num_turns:
        together = chance.sample(
            talks, min(sizes.num_together, sizes.num_turns - findings.num_turns)
        )
        for talk in together:
            talk.ask(chance.choice(QUESTIONS))
            if uncached.count(talk.prompt) + sizes.max_tokens > sizes.context:
                talk.start_over()
        now_s = begin_s + findings.num_turns * TURN_S
        expected = uncached.answers([talk.request(now_s, cached=False) for talk in together])
        answers = asked.answers([talk.request(now_s, cached=True) for talk in together])
        for talk, answer, truth in zip(together, answers, expected, strict=True):
            compare(
                findings,
                talk,
                answer,
                truth,
                [other.codeword for other in talks if other is not talk],
            )
            talk.hear(truth)
        stats = asked.stats()
        for name, value in stats.gauges.items():
            findings.most_gauges[name] = max(value, findings.most_gauges.get(name, value))
        resident.append(watch.resident_nbytes())
        progress(findings)
    fifth = max(1, len(resident) // 5)
    findings.grown_nbytes = max(resident) - max(resident[:fifth])
    findings.most_ssd_nbytes = watch.most_nbytes
    findings.stats = stats
    idle = (
        "engine_open",
        "engine_running",
        "engine_waiting",
        "cache_leases",
        "cache_pinned_pages",
        "cache_staged_nbytes",
    )
    findings.leaks = {name: stats.gauges[name] for name in idle if stats.gauges[name]}
    return findings


def compare(
    findings: Findings, talk: Conversation, answer: Answer, truth: Answer, foreign: Sequence[str]
) -> None:
    """Count one answer against the uncached run's `truth`; `foreign` are the other conversations'
    codewords."""
    findings.num_turns += 1
    findings.num_prompt_tokens += answer.report.num_prompt
    findings.least_prompt = min(findings.least_prompt, answer.report.num_prompt)
    findings.num_unequal += answer.token_ids != truth.token_ids
    findings.num_foreign += any(codeword in answer.text for codeword in foreign)
    findings.num_own += talk.codeword in answer.text
    findings.num_tokens_by_tier.update(answer.report.tiers)
