"""The step loop on the real cache and a runner whose output depends on every KV slot: no threads,
no torch."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.prefix_cache import PrefixCache
from engine.messages import Failed, Finished, Started, TextDelta
from engine.schedule.sequence import Sequence, Slice
from engine.store.memory import MemoryStore
from engine.types import CachePlan, CacheReport, Sampling
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.runner import FakeRunner
from tests.fakes.stepper import Outcome, Stepper
from tests.fakes.tier_io import ManualIo, StillClock, manual_tiers

NO_CACHE = CachePlan(read=False, store=False)


def expected(token_ids: Seq[int], **options: object) -> list[int]:
    """The answer an engine gives that has never seen anything."""
    return Stepper(FakeRunner(num_pages=200)).answer(token_ids, plan=NO_CACHE, **options).token_ids


def assert_nothing_leaks(stepper: Stepper) -> None:
    """With nothing running every page is free or can be freed: a request for the whole pool is
    admitted."""
    assert stepper.loop.scheduler.num_running == stepper.loop.scheduler.num_waiting == 0
    stepper.cache.check()
    num_slots = stepper.runner.num_pages * stepper.runner.block_size
    whole = min(stepper.loop.limits.context, num_slots) - 1
    outcome = stepper.answer([1] * whole, plan=NO_CACHE, max_tokens=1)
    assert outcome.finished.reason == "context" or outcome.finished.num_output == 1


def test_a_request_from_start_to_end() -> None:
    """`Started` before any prefill, a delta per token, one `Finished` with the counts."""
    stepper = Stepper()
    outcome = stepper.submit([*b"hello"], max_tokens=3)
    assert [type(event) for event in outcome.events] == [Started]
    stepper.step()
    assert [type(event) for event in outcome.events] == [Started, TextDelta]
    stepper.run()
    assert [type(event) for event in outcome.events] == [
        Started,
        TextDelta,
        TextDelta,
        TextDelta,
        Finished,
    ]
    assert outcome.started.report.num_prompt == 5
    assert (outcome.finished.reason, outcome.finished.num_output) == ("length", 3)
    assert outcome.token_ids == expected(b"hello", max_tokens=3)


def test_started_is_sent_before_the_first_step() -> None:
    """The bill of the prompt is known before anything is computed."""
    stepper = Stepper()
    seen: list[int] = []
    outcome = stepper.submit([*b"hello"])
    stepper.runner.before_step = lambda slices: seen.append(len(outcome.events))
    stepper.step()
    assert seen == [1]


@pytest.mark.parametrize("num_more", [0, 1, 3, 4, 5, 30])
@pytest.mark.parametrize("num_shared", [1, 3, 4, 5, 16, 21])
def test_a_hit_gives_the_answer_of_a_miss(num_shared: int, num_more: int) -> None:
    """On and off block borders, with much or nothing behind the boundary, the tokens are those of a
    cold engine."""
    shared = [i % 251 for i in range(num_shared)]
    stepper = Stepper()
    stepper.answer([*shared, 255], marks=[num_shared])
    prompt = [*shared, *range(100, 100 + num_more), 7]
    outcome = stepper.answer(prompt, marks=[num_shared], max_tokens=9)
    assert outcome.started.report.hit is not None
    assert outcome.started.report.skipped >= num_shared
    assert outcome.token_ids == expected(prompt, max_tokens=9)


def test_one_token_is_always_computed() -> None:
    """A prompt seen before in full skips all but its last token."""
    stepper = Stepper()
    prompt = [*range(16)]
    first = stepper.answer(prompt)
    again = stepper.answer(prompt)
    assert again.started.report.skipped == 15
    assert again.token_ids == first.token_ids


def test_the_next_turn_hits_through_the_answer() -> None:
    """Generated tokens' KV is kept, all but the last token's, which was never computed."""
    stepper = Stepper()
    prompt = [*range(10)]
    answer = stepper.answer(prompt, max_tokens=9).token_ids
    outcome = stepper.answer([*prompt, *answer, 1, 2])
    assert outcome.started.report.skipped >= 16
    assert outcome.token_ids == expected([*prompt, *answer, 1, 2])


def test_decoded_kv_that_has_other_bits_is_not_reused() -> None:
    """Where decode computes other bits than prefill, the next turn hits only the prompt, and is
    right."""
    stepper = Stepper(FakeRunner(reuse_decode_kv=False))
    prompt = [*range(10)]
    answer = stepper.answer(prompt, max_tokens=9).token_ids
    outcome = stepper.answer([*prompt, *answer, 1, 2], max_tokens=9)
    cold = Stepper(FakeRunner(reuse_decode_kv=False)).answer(
        [*prompt, *answer, 1, 2], plan=NO_CACHE, max_tokens=9
    )
    assert 8 <= outcome.started.report.skipped <= 10
    assert outcome.token_ids == cold.token_ids


def test_running_sequences_share_what_is_computed() -> None:
    """A second request with the same long prompt hits what the first has committed, while it still
    runs."""
    stepper = Stepper()
    prompt = [*range(64)]
    first = stepper.submit(prompt, max_tokens=30)
    for _ in range(5):
        stepper.step()
    assert not first.is_over
    second = stepper.submit([*prompt, 1], max_tokens=30)
    stepper.run()
    assert second.started.report.skipped >= 60
    assert first.token_ids == expected(prompt, max_tokens=30)
    assert second.token_ids == expected([*prompt, 1], max_tokens=30)


def test_the_entry_exists_once_the_first_token_does() -> None:
    """Promises are written with the first token: who does not wait for them misses until then, and
    hits from then on."""
    stepper = Stepper()
    prompt = [*range(40)]
    first = stepper.submit(prompt, marks=[30], max_tokens=20)
    stepper.step()
    early = stepper.submit([*prompt[:30], 99], marks=[30], single_flight="off")
    stepper.step()
    assert early.started.report.hit is None
    while not first.token_ids:
        stepper.step()
    late = stepper.submit([*prompt[:30], 98], marks=[30])
    stepper.run()
    assert late.started.report.hit is not None
    assert late.started.report.hit.offset == 30


def test_prefill_only() -> None:
    """`max_tokens` 0 writes the promises, samples nothing and finishes with `length`."""
    stepper = Stepper()
    outcome = stepper.answer([*range(40)], marks=[30], max_tokens=0)
    assert [type(event) for event in outcome.events] == [Started, Finished]
    assert (outcome.finished.reason, outcome.finished.num_output) == ("length", 0)
    hit = stepper.answer([*range(30), 1], marks=[30]).started.report.hit
    assert hit is not None
    assert hit.offset == 30


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "reason", "num_output"),
    [
        (40, 9, "length", 9),
        (40, 10, "length", 10),
        (40, 11, "context", 10),
        (49, 1000, "context", 1),
        (49, 1, "length", 1),
    ],
)
def test_the_answer_is_clamped_to_the_context(
    num_prompt: int, max_tokens: int, reason: str, num_output: int
) -> None:
    """An answer that the context cut short says so; one that just fits doesn't."""
    outcome = Stepper(context=50).answer([1] * num_prompt, max_tokens=max_tokens)
    assert (outcome.finished.reason, outcome.finished.num_output) == (reason, num_output)


@pytest.mark.parametrize("num_prompt", [50, 51, 1000])
def test_a_prompt_that_fills_the_context_is_refused(num_prompt: int) -> None:
    """Without room for one token the numbers are told, and nothing is started."""
    outcome = Stepper(context=50).answer([1] * num_prompt)
    assert outcome.events == [
        Failed(
            "0",
            "context_exceeded",
            f"prompt is too long: {num_prompt} tokens > 50 maximum",
            num_prompt,
            50,
        )
    ]


def test_an_empty_prompt_is_refused() -> None:
    """There is nothing to compute."""
    assert Stepper().answer([]).failed.kind == "bad_prompt"


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    """The pool limits the context, so what can never fit is refused instead of waiting for ever."""
    outcome = Stepper(FakeRunner(num_pages=8), context=1000).answer([1] * 32)
    assert (outcome.failed.kind, outcome.failed.limit) == ("context_exceeded", 32)


def test_a_request_as_large_as_the_pool_runs() -> None:
    """Also when the pool is full of what others left behind, even of this request's own prefix."""
    stepper = Stepper(FakeRunner(num_pages=8), context=1000)
    stepper.answer([*range(31)], marks=[13, 22])
    outcome = stepper.answer([*range(22), *range(100, 109)], marks=[13, 22], max_tokens=10)
    assert outcome.finished.reason == "context"
    assert outcome.token_ids == expected([*range(22), *range(100, 109)], max_tokens=1)
    assert_nothing_leaks(stepper)


def test_a_full_queue_is_overloaded() -> None:
    """Past `max_queue` waiting requests the next is refused; the others are served."""
    stepper = Stepper(max_queue=2, max_sequences=1)
    outcomes = [stepper.submit([1, 2, 3]) for _ in range(4)]
    assert outcomes[3].failed.kind == "overloaded"
    stepper.run()
    assert [outcome.finished.reason for outcome in outcomes[:3]] == ["length"] * 3


def test_large_requests_wait_for_pages() -> None:
    """Two requests that fit the pool only one after the other are both served, the second later."""
    stepper = Stepper(FakeRunner(num_pages=8))
    first, second = stepper.submit([1] * 20, max_tokens=5), stepper.submit([2] * 20, max_tokens=5)
    stepper.step()
    assert (
        stepper.loop.scheduler.num_running,
        stepper.loop.scheduler.num_waiting,
        second.events,
    ) == (1, 1, [])
    stepper.run()
    assert (first.finished.num_output, second.finished.num_output) == (5, 5)
    assert second.token_ids == expected([2] * 20, max_tokens=5)


# Aborts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", range(12))
def test_an_abort_at_any_step_leaks_nothing(num_steps: int) -> None:
    """Waiting, in each prefill chunk and in decode: answered at once, all pages come back, the
    other answer is unharmed."""
    stepper = Stepper(FakeRunner(num_pages=40))
    other = stepper.submit([*range(100, 130)], max_tokens=12)
    aborted = stepper.submit([*range(90)], marks=[40], max_tokens=30)
    for _ in range(num_steps):
        stepper.step()
    stepper.abort(aborted)
    assert aborted.finished.reason == "cancelled"
    assert aborted.finished.num_output == len(aborted.token_ids)
    stepper.run()
    assert other.token_ids == expected([*range(100, 130)], max_tokens=12)
    assert_nothing_leaks(stepper)


def test_what_an_aborted_request_prefilled_stays_usable() -> None:
    """A client that gave up in the middle of a long prefill finds the part that was done."""
    stepper = Stepper()
    prompt = [*range(100)]
    aborted = stepper.submit(prompt)
    for _ in range(3):
        stepper.step()
    stepper.abort(aborted)
    again = stepper.answer(prompt)
    assert again.started.report.skipped == 48
    assert again.token_ids == expected(prompt)


def test_an_abort_before_start_has_no_started() -> None:
    """A request that still waited costs nothing: its only event is `Finished`."""
    stepper = Stepper(max_sequences=1)
    stepper.submit([1, 2, 3], max_tokens=5)
    waiting = stepper.submit([4, 5, 6])
    stepper.step()
    stepper.abort(waiting)
    assert waiting.events == [Finished("1", "cancelled", 0)]


# Ends by content ----------------------------------------------------------------------------------


def scripted(text: str) -> Stepper:
    """A stepper whose model says `text`, one byte per token, and then ends its turn."""
    stepper = Stepper(context=1000)
    stepper.runner.script = lambda sequence: text.encode()
    stepper.runner.script_end = min(stepper.tokenizer.stop_ids)
    return stepper


@pytest.mark.parametrize(
    ("text", "stop", "shown", "reason"),
    [
        ("Hello", (), "Hello", "stop"),
        ("안녕하세요 🎉", (), "안녕하세요 🎉", "stop"),
        ("one. two.", (".",), "one", "stop_sequence"),
        ("one. two.", ("two", "one. t"), "", "stop_sequence"),
        ("이제 그만하자", ("그만",), "이제 ", "stop_sequence"),
        ("almost EN", ("END",), "almost EN", "stop"),
    ],
)
def test_the_text_a_client_reads(text: str, stop: tuple[str, ...], shown: str, reason: str) -> None:
    """Whole characters, nothing of a stop string, and the reason why it ended."""
    outcome = scripted(text).answer([1, 2, 3], max_tokens=100, stop=stop)
    assert (outcome.text, outcome.finished.reason) == (shown, reason)
    assert outcome.finished.stop in (*stop, None)
    assert outcome.finished.num_output == len(outcome.token_ids)


def test_the_end_of_turn_is_not_counted() -> None:
    """`num_output` is what the client can see tokens of."""
    outcome = scripted("abc").answer([1, 2, 3], max_tokens=100)
    assert (outcome.finished.num_output, outcome.token_ids) == (3, [*b"abc"])


class Grammar:
    """Allows a text and then the end of the turn, and remembers what it was told; fails after
    `patience` tokens."""

    def __init__(self, text: str, end: int, patience: int = 1000) -> None:
        self.left = [*text.encode(), end]
        self.told: list[int] = []
        self.patience = patience

    def allowed(self) -> bytes:
        return (1 << self.left[0]).to_bytes(64, "little")

    def advance(self, token_id: int) -> None:
        self.told.append(token_id)
        assert token_id == self.left.pop(0)

    @property
    def failure(self) -> str | None:
        return "too long" if len(self.told) >= self.patience else None


def test_a_constraint_is_told_every_token() -> None:
    """In order, the end of turn included; nothing is guessed meanwhile."""
    stepper = Stepper()
    end = min(stepper.tokenizer.stop_ids)
    grammar = Grammar("abcabcabcabc", end)
    outcome = stepper.submit([*b"abcabc"], max_tokens=100, constraint=grammar)
    stepper.run()
    assert (outcome.text, outcome.finished.reason) == ("abcabcabcabc", "stop")
    assert grammar.told == [*b"abcabcabcabc", end]
    assert stepper.loop.stats.counters["engine_drafted_tokens_total"] == 0


def test_a_constraint_that_fails_ends_the_request() -> None:
    """With the reason, once, and its pages come back."""
    stepper = Stepper()
    outcome = stepper.submit([1, 2], max_tokens=100, constraint=Grammar("abcdef", 300, patience=4))
    stepper.run()
    assert (outcome.failed.kind, outcome.failed.message) == ("bad_format", "too long")
    assert outcome.text == "abc"
    assert_nothing_leaks(stepper)


# Errors of the model ------------------------------------------------------------------------------


def fail_when(condition: Seq[bool]) -> object:
    """A hook that raises in the steps marked true."""
    left = iter(condition)

    def hook(slices: Seq[Slice]) -> None:
        if next(left, False):
            raise RuntimeError("device trouble")

    return hook


def test_one_failed_step_is_survived() -> None:
    """Its sequences fail, keep what was computed before, and the next request is served from that,
    correctly."""
    stepper = Stepper()
    prompt = [*range(100)]
    outcome = stepper.submit(prompt)
    stepper.runner.before_step = fail_when([False, False, True])  # type: ignore[assignment]
    stepper.run()
    assert outcome.failed.kind == "internal"
    assert "RuntimeError" in outcome.failed.message
    again = stepper.answer(prompt)
    assert again.started.report.skipped == 32
    assert again.token_ids == expected(prompt)
    assert_nothing_leaks(stepper)


def test_two_failed_steps_in_a_row_are_fatal() -> None:
    """A model that fails again right away is broken: the error is raised, after its sequences were
    told."""
    stepper = Stepper()
    stepper.runner.before_step = fail_when([True, True])  # type: ignore[assignment]
    first = stepper.answer([1, 2, 3])
    second = stepper.submit([1, 2, 3])
    with pytest.raises(RuntimeError, match="device trouble"):
        stepper.step()
    assert (first.failed.kind, second.failed.kind) == ("internal", "internal")


def test_failed_steps_with_a_good_one_between_are_survived() -> None:
    """Only consecutive errors are fatal."""
    stepper = Stepper()
    stepper.runner.before_step = fail_when([True, False, True, False])  # type: ignore[assignment]
    ends = [stepper.answer([1, 2, 3], max_tokens=1).last for _ in range(4)]
    assert [type(end) for end in ends] == [Failed, Finished, Failed, Finished]


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize("error", [MemoryError(), OutOfMemoryError("CUDA out of memory")])
def test_running_out_of_memory_is_fatal_at_once(error: Exception) -> None:
    """No second try with a full device."""
    stepper = Stepper()

    def hook(slices: Seq[Slice]) -> None:
        raise error

    stepper.runner.before_step = hook
    outcome = stepper.submit([1, 2, 3])
    with pytest.raises(type(error)):
        stepper.step()
    assert outcome.failed.kind == "internal"


# Time ---------------------------------------------------------------------------------------------


def test_time_is_the_largest_ever_told() -> None:
    """A tick past the TTL makes the entry a miss; a request that started earlier doesn't turn time
    back."""
    stepper = Stepper()
    stepper.answer([*range(40)], marks=[30], ttl_s=300.0, started_at_s=1000.0)
    stepper.loop.tick(1299.0)
    assert (
        stepper.answer([*range(30), 1], marks=[30], started_at_s=1000.0).started.report.hit
        is not None
    )
    stepper.loop.tick(1600.0)
    assert (
        stepper.answer([*range(30), 2], marks=[30], started_at_s=1000.0).started.report.hit is None
    )


def test_a_flush_forgets_one_tenant() -> None:
    """The other tenant's prompts still hit."""
    stepper = Stepper()
    for tenant in ("a", "b"):
        stepper.answer([*range(40)], tenant=tenant)
    assert stepper.loop.flush("a") > 0
    assert stepper.answer([*range(40)], tenant="a").started.report.skipped == 0
    assert stepper.answer([*range(40)], tenant="b").started.report.skipped == 39


# Random workloads ---------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[str, object]]:
    """Conversations that grow, share beginnings and get aborted, interleaved with steps and
    time."""
    actions: list[tuple[str, object]] = []
    for _ in range(draw(st.integers(1, 14))):
        kinds = [
            "new",
            "new",
            "grow",
            "grow",
            "abort",
            "steps",
            "steps",
            "time",
            "flush",
            "io",
            "io",
            "fault",
        ]
        kind = draw(st.sampled_from(kinds))
        match kind:
            case "new":
                actions.append(
                    (kind, [draw(st.integers(0, 2)) for _ in range(draw(st.integers(1, 40)))])
                )
            case "grow":
                actions.append(
                    (
                        kind,
                        (
                            draw(st.integers(0, 9)),
                            [draw(st.integers(0, 2)) for _ in range(draw(st.integers(1, 9)))],
                        ),
                    )
                )
            case "abort" | "steps":
                actions.append((kind, draw(st.integers(0, 9))))
            case "time":
                actions.append((kind, draw(st.sampled_from([10.0, 200.0, 400.0]))))
            case "io":
                actions.append((kind, (draw(st.integers(0, 9)), draw(st.integers(0, 9)))))
            case "fault":
                actions.append(
                    (kind, (draw(st.booleans()), draw(st.booleans()), draw(st.booleans())))
                )
            case _:
                actions.append((kind, None))
    return actions


class Play:
    """Carries a workload out and remembers what was asked."""

    def __init__(self, stepper: Stepper, data: st.DataObject, tier: SlowTier | None = None) -> None:
        self.stepper = stepper
        self.tier = tier
        self.data = data
        self.asked: list[tuple[list[int], Outcome]] = []
        self.now_s = 1000.0

    def do(self, kind: str, value: object) -> None:
        match kind, value:
            case "new", list(prompt):
                self.ask(prompt)
            case "grow", (int(index), list(tail)) if self.asked:
                prompt, outcome = self.asked[index % len(self.asked)]
                self.ask([*prompt, *outcome.token_ids, *tail])
            case "abort", int(index) if self.asked:
                outcome = self.asked[index % len(self.asked)][1]
                if not outcome.is_over:
                    self.stepper.abort(outcome)
            case "steps", int(number):
                for _ in range(number):
                    self.stepper.step()
            case "time", float(seconds):
                self.now_s += seconds
                self.stepper.loop.tick(self.now_s)
            case "flush", _:
                self.stepper.loop.flush("t")
            case "io", (int(num_reads), int(num_writes)) if self.tier is not None:
                self.tier.reader.run(num_reads)
                self.tier.writer.run(num_writes)
                self.tier.clock.advance(0.1)
                self.stepper.step()
            case "fault", (bool(damages), bool(loses), bool(drops)) if self.tier is not None:
                store = self.tier.store
                store.damage, store.lose_reads, store.drop_puts = damages, loses, drops

    def ask(self, prompt: list[int]) -> None:
        marks = self.data.draw(
            st.lists(st.integers(1, len(prompt)), max_size=3, unique=True), "marks"
        )
        outcome = self.stepper.submit(
            prompt,
            marks=marks,
            max_tokens=self.data.draw(st.integers(0, 20), "max_tokens"),
            ttl_s=self.data.draw(st.sampled_from([100.0, 300.0, 3600.0]), "ttl_s"),
            unmarked_ttl_s=self.data.draw(st.sampled_from([0.0, 300.0]), "unmarked_ttl_s"),
            tenant=self.data.draw(st.sampled_from("tu"), "tenant"),
            single_flight=self.data.draw(
                st.sampled_from(["off", "read", "read", "write"]), "single_flight"
            ),
            started_at_s=self.now_s,
        )
        self.asked.append((prompt, outcome))


@st.composite
def setups(draw: st.DrawFn) -> Stepper:
    """Small pools with and without a tier below, either kind of decode, any chunk size; answers
    that are reserved in large and in small parts, and that can be guessed or not."""
    runner = FakeRunner(
        num_pages=draw(st.integers(16, 48)),
        reuse_decode_kv=draw(st.booleans()),
        alphabet=draw(st.sampled_from([b"abcdefghijklmnopqrstuvwxyz ", b"\0\1"])),
    )
    num_items = draw(st.sampled_from([None, 0, 5, 100]))
    store = None if num_items is None else MemoryStore(num_items * (runner.page_nbytes + 200))
    return Stepper(
        runner,
        store=store,
        force_store=draw(st.booleans()),
        max_step_tokens=draw(st.integers(4, 40)),
        max_mixed_tokens=draw(st.integers(1, 40)),
        answer_tokens=draw(st.sampled_from([1, 3, 256])),
    )


@settings(max_examples=100)
@given(stepper=setups(), actions=workloads(), data=st.data())
def test_cached_answers_equal_uncached_ones(
    stepper: Stepper, actions: list[tuple[str, object]], data: st.DataObject
) -> None:
    """Random conversations, aborts, expiry and small pools: every token is the one a cold engine
    gives, every count adds up, and at the end nothing is left pinned."""
    play = Play(stepper, data)
    for kind, value in actions:
        play.do(kind, value)
    stepper.run()
    check_answers(play)


@settings(max_examples=150, deadline=None)
@given(
    num_pages=st.integers(16, 48), force_store=st.booleans(), actions=workloads(), data=st.data()
)
def test_answers_are_the_same_over_a_slow_and_faulty_tier(
    num_pages: int, force_store: bool, actions: list[tuple[str, object]], data: st.DataObject
) -> None:
    """The same, over a tier that answers late or never, loses, damages and drops what it likes; in
    the end it works."""
    tier = SlowTier()
    answer_tokens = data.draw(st.sampled_from([1, 3, 256]), "answer_tokens")
    runner = FakeRunner(num_pages=num_pages)
    stepper = Stepper(
        runner, tiers=tier.tiers, force_store=force_store, answer_tokens=answer_tokens
    )
    play = Play(stepper, data, tier)
    for kind, value in actions:
        play.do(kind, value)
    for io in (tier.reader, tier.writer):
        io.is_open = True
        io.run()
    stepper.step()
    stepper.run()
    check_answers(play)
    assert stepper.cache.stats().gauges.staged_nbytes == 0


class SlowTier:
    """A tier whose reads and writes wait for the test, over a store that fails when it says so."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.store = FaultyStore(MemoryStore(1 << 20))
        self.reader, self.writer = ManualIo(is_open=False), ManualIo(is_open=False)
        self.tiers = manual_tiers(("ssd", self.store, self.reader, self.writer), clock=self.clock)


def check_answers(play: Play) -> None:
    """Every token is a cold engine's, every count adds up, nothing is left pinned."""
    stepper = play.stepper
    model = stepper.runner
    runner = FakeRunner(
        num_pages=200, reuse_decode_kv=model.reuse_decode_kv, alphabet=model.alphabet
    )
    cold = Stepper(runner, context=stepper.loop.limits.context, speculation=False)
    for prompt, outcome in play.asked:
        last = outcome.last
        if isinstance(last, Failed):
            assert last.kind == "context_exceeded"
            continue
        truth = cold.answer(prompt, plan=NO_CACHE, max_tokens=20).token_ids
        assert outcome.token_ids == truth[: last.num_output]
        assert last.num_output == len(outcome.token_ids)
        for report in (event.report for event in outcome.events if isinstance(event, Started)):
            check_report(report, len(prompt))
    assert_nothing_leaks(stepper)


def check_report(report: CacheReport, num_prompt: int) -> None:
    """What promise 2 says of every report."""
    offsets = [boundary.offset for boundary in report.boundaries]
    assert report.num_prompt == num_prompt
    assert 0 <= report.skipped <= num_prompt - 1
    assert sum(report.tiers.values()) == report.skipped
    assert report.hit is None or report.hit.offset <= report.skipped
    assert offsets == sorted(offsets)
    assert all(0 < offset <= num_prompt - 1 for offset in offsets)


def test_the_fake_notices_a_wrong_page() -> None:
    """Control: a runner that reads one slot of somebody else gives another answer."""
    runner = FakeRunner()
    sequence = Sequence("", [1, 2, 3, 4, 5, 6], 6, Sampling(max_tokens=1), block_table=[0, 1])
    (right,) = runner.step([Slice(sequence, 0, 6, sample=True)])
    tokens = set()
    for page in range(2, 12):
        runner.write_pages([page], memoryview(bytes([page]) * runner.page_nbytes))
        sequence.block_table = [page, 1]
        tokens.update(runner.step([Slice(sequence, 5, 1, sample=True)]))
    assert tokens != {right}


def test_the_cache_is_really_used() -> None:
    """Control: the random test above would pass without any cache, so count what it saved here."""
    stepper = Stepper()
    for _ in range(3):
        stepper.answer([*range(40)])
    counters = stepper.loop.stats.counters
    assert (counters["engine_prompt_tokens_total"], counters["engine_skipped_tokens_total"]) == (
        120,
        78,
    )
    assert counters["engine_prefill_tokens_total"] == 42
    assert isinstance(stepper.cache, PrefixCache)
