"""Several workers of one model: what prompts have in common, who gets a request,
and what happens when somebody cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Finished, TextDelta
from engine.prompt.types import CacheMark, Message, Position, Prompt, TextPart, ThinkingPart, Tool
from engine.types import CachePlan, PlannedEntry, Sampling
from gateway.backends.affinity import LOAD_FACTOR, PATIENCE, Affinity, Holder, Why, choose
from gateway.backends.prefixes import (
    MAX_PREFIXES,
    SLICE_NBYTES,
    Prefix,
    PrefixTrace,
    trace_prefixes,
)
from gateway.backends.router import Router
from gateway.errors import EngineFailed, InvalidRequest, Overloaded
from gateway.request import Request
from gateway.session import routing_key
from tests.fakes.backend import Script, ScriptedBackend

MARK = CacheMark(300.0)


def said(*texts: str, role: Any = "user", mark: bool = False) -> Message:
    return Message(role, tuple(TextPart(text, MARK if mark else None) for text in texts))


def asked(
    *messages: Message, system: str = "", tools: tuple[Tool, ...] = (), **more: Any
) -> Request:
    """A request in which nothing is too short to be cached."""
    prompt = Prompt(messages, (TextPart(system),) if system else (), tools)
    return Request(id="r", wire="openai", model="m", prompt=prompt, sampling=Sampling(5), **more)


def digests(request: Request) -> list[bytes]:
    return [prefix.digest for prefix in trace_prefixes(request).prefixes]


# What prompts have in common ----------------------------------------------------------------------


def test_a_conversation_keeps_its_prefixes() -> None:
    """Every turn begins with all of the turn before it, whether marks move or not."""
    first = asked(said("one", mark=True), system="Be brief.")
    second = asked(
        said("one"), said("two", role="assistant"), said("three", mark=True), system="Be brief."
    )
    before, after = digests(first), digests(second)
    assert after[: len(before)] == before
    assert len(after) > len(before)


CONTENT = st.lists(
    st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(["a", "b", "ab", ""])),
    max_size=6,
)


@given(CONTENT, CONTENT)
def test_prefixes_are_equal_where_the_content_is(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    """Two prompts have as many hashes in common as their equal beginnings have, and none after
    that."""
    told = [
        digests(asked(*(said(text, role=role) for role, text in turns), said("end")))
        for turns in (one, other)
    ]
    common = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    assert len(set(told[0]) & set(told[1])) == (len(told[0]) if one == other else common)


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "other"},
        {"tools": (Tool("find", "Finds.", {"b": 1, "a": 2}),)},
        {"system": "Be long."},
    ],
)
def test_what_comes_first_changes_everything(change: dict[str, Any]) -> None:
    """Tenant, tools and system text stand before all messages."""
    base: dict[str, Any] = {
        "tenant": "one",
        "tools": (Tool("find", "Finds.", {"a": 2, "b": 1}),),
        "system": "Be brief.",
    }
    one, other = digests(asked(said("hi"), **base)), digests(asked(said("hi"), **(base | change)))
    assert one[-1] != other[-1]
    assert one[0] != other[0] or "system" in change


def test_a_long_part_is_hashed_in_slices() -> None:
    """Questions about one document in one part share the document; so do raw texts."""
    document = "word " * SLICE_NBYTES
    one, other = (trace_prefixes(asked(said(document + question))) for question in ("Why?", "How?"))
    shared = {prefix.digest for prefix in one.prefixes} & {
        prefix.digest for prefix in other.prefixes
    }
    assert len(shared) >= 5
    assert one.home == other.home
    raw = [
        msgspec.structs.replace(asked(said("")), prompt=Prompt((said(""),), raw=document + end))
        for end in "ab"
    ]
    assert trace_prefixes(raw[0]).home == trace_prefixes(raw[1]).home
    assert digests(raw[0])[-1] != digests(raw[1])[-1]


def test_of_a_long_prompt_the_first_prefix_and_the_last_are_kept() -> None:
    """The number is bounded; what many prompts share, and what the next turn will look for, are
    there."""
    turns = [said(f"turn {i}") for i in range(200)]
    told, shorter = digests(asked(*turns, system="s")), digests(asked(*turns[:-1], system="s"))
    assert len(told) == MAX_PREFIXES
    assert shorter[-1] in told
    assert told[0] == shorter[0]


def test_what_is_too_short_to_be_cached_is_left_out() -> None:
    """But the last prefix is there whatever its length."""
    plan = CachePlan(min_tokens=100)
    assert len(digests(asked(said("hi"), said("hi"), plan=plan))) == 1
    assert len(digests(asked(said("hi"), said("x" * 200), said("hi"), plan=plan))) == 2


def test_promised_is_what_a_planned_entry_ends_in() -> None:
    """From the first planned position on."""
    plan = CachePlan(writable=(PlannedEntry(Position("messages", 0), 300.0),))
    told = trace_prefixes(asked(said("a"), said("b"), system="s", plan=plan)).prefixes
    assert [prefix.promised for prefix in told] == [False, True, True]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (asked(said("a"), system="s"), asked(said("b"), system="s"), True),
        (asked(said("a")), asked(said("b")), False),
        (asked(said("a"), said("b")), asked(said("a"), said("c")), True),
        (asked(said("a"), routing_key=b"k"), asked(said("b"), routing_key=b"k"), True),
        (asked(said("a"), routing_key=b"k"), asked(said("a"), routing_key=b"l"), False),
        (
            asked(said("a"), system="s", tools=(Tool("t", "", {}, MARK),)),
            asked(said("a"), tools=(Tool("t", "", {}),)),
            True,
        ),
        (
            asked(said("a"), system="s", tools=(Tool("t", "", {}),)),
            asked(said("a"), tools=(Tool("t", "", {}),)),
            False,
        ),
    ],
)
def test_where_requests_start_from(one: Request, other: Request, alike: bool) -> None:
    """The client's key; else what is marked in the head, the head, or the beginning of the
    conversation."""
    assert (trace_prefixes(one).home == trace_prefixes(other).home) == alike


def test_reasoning_and_empty_messages_have_hashes() -> None:
    """Whatever a prompt is made of; also of nothing."""
    assert digests(asked(Message("assistant", (ThinkingPart("hm"),)), Message("user", ())))
    assert digests(asked()) == []


@pytest.mark.parametrize(
    ("headers", "parameters", "alike"),
    [
        ({"x-session-affinity": "s"}, {}, True),
        ({"x-claude-code-session-id": "s"}, {}, True),
        ({"x-session-id": "other"}, {"prompt_cache_key": "s"}, True),
        ({"x-session-id": "other"}, {}, False),
    ],
)
def test_a_session_has_one_key(
    headers: dict[str, str], parameters: dict[str, str], alike: bool
) -> None:
    """The body's key counts before headers; a tenant's keys are its own; nothing of the name is in
    the hash."""
    key = routing_key("t", headers, parameters)
    assert (key == routing_key("t", {}, {"prompt_cache_key": "s"})) == alike
    assert key != routing_key("u", headers, parameters)
    assert len(key) == 16
    assert routing_key("t", {"x-user": "me"}, {}) == b""


# Who gets a request -------------------------------------------------------------------------------


A, B, C = (Holder(i, 1) for i in range(3))


def traced(*sizes: int, home: str = "home", promised: bool = False) -> PrefixTrace:
    """A prompt with prefixes of these sizes, which are their names as well."""
    return PrefixTrace(
        tuple(Prefix(str(nbytes).encode(), nbytes, promised) for nbytes in sizes), home.encode()
    )


def believed(held: dict[str, tuple[Holder, ...]]) -> Affinity:
    affinity = Affinity()
    for name, holders in held.items():
        for holder in holders:
            affinity.note((name.encode(),), holder, 0.0, 300.0)
    return affinity


@pytest.mark.parametrize(
    ("held", "loads", "expected"),
    [
        ({"1000": (A,), "3000": (B,)}, {A: 0, B: 0, C: 0}, B),
        ({"1000": (A,), "3000": (B,)}, {A: 0, C: 0}, A),
        ({"1000": (A,), "3000": (B,)}, {A: 0, B: 3, C: 0}, B),
        ({"1000": (A,), "3000": (B,)}, {A: 0, B: 4, C: 0}, A),
        ({"1000": (A,), "3000": (B,)}, {A: 5, B: 7, C: 0}, C),
        ({"3000": (A, B)}, {A: 1, B: 0, C: 1}, B),
        ({"3000": (A, B), "home": (A,)}, {A: 1, B: 1, C: 0}, A),
        ({"home": (C,)}, {A: 0, B: 0, C: 0}, C),
    ],
    ids=[
        "longest",
        "it is gone",
        "a little busy",
        "too busy",
        "all busy",
        "least busy",
        "its like go there",
        "only its like",
    ],
)
def test_the_holder_of_most_gets_it(
    held: dict[str, tuple[Holder, ...]], loads: dict[Holder, int], expected: Holder
) -> None:
    """Unless others have so much less to do that it is computed sooner there."""
    pick = choose(traced(1000, 3000), loads, believed(held), 10.0)
    told: Why = (
        "like" if "home" in held and len(held) == 1 else "spilled" if expected == C else "held"
    )
    assert (pick.holder, pick.why) == (expected, told)


def test_a_belief_ends_with_its_time() -> None:
    """And is renewed by use, for as long as was promised first where that is longer."""
    affinity = Affinity()
    affinity.note((b"x",), A, 0.0, 300.0)
    affinity.note((b"x",), A, 200.0, 10.0)
    assert affinity.holds(b"x", A, 299.0)
    assert not affinity.holds(b"x", A, 300.0)
    affinity.note((b"x",), B, 300.0, 10.0)
    assert affinity.holds(b"x", B, 305.0)


def test_a_belief_ends_with_the_process() -> None:
    """The next life of a worker holds nothing of the one before."""
    affinity = believed({"x": (A,)})
    assert not affinity.holds(b"x", Holder(0, 2), 1.0)
    affinity.note((b"x",), Holder(0, 2), 1.0, 300.0)
    assert not affinity.holds(b"x", A, 1.0)


def test_memory_is_bounded() -> None:
    """What was used longest ago is forgotten first."""
    affinity = Affinity(max_prefixes=2)
    for name in (b"a", b"b", b"a", b"c"):
        affinity.note((name,), A, 0.0, 300.0)
    assert len(affinity) == 2
    assert [affinity.holds(name, A, 1.0) for name in (b"a", b"b", b"c")] == [True, False, True]


def test_what_was_promised_is_worth_more() -> None:
    """Computed elsewhere, it would be billed as written again."""
    for promised, expected in ((True, A), (False, B)):
        loads = {A: 3, B: 0}
        assert (
            choose(
                traced(1000, home="b", promised=promised),
                loads,
                believed({"1000": (A,), "b": (B,)}),
                1.0,
            ).holder
            == expected
        )


def test_few_are_never_too_many_for_a_long_prefix() -> None:
    """However idle the others are; and however long it is, there is an end."""
    holds, idle = believed({"100000": (A,)}), {B: 0, C: 0}
    assert choose(traced(100_000), {A: PATIENCE - 1} | idle, holds, 1.0).holder == A
    assert choose(traced(100_000), {A: PATIENCE} | idle, holds, 1.0).holder != A


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.booleans(),
    st.binary(),
)
def test_nobody_is_overloaded(
    numbers: list[int], holding: set[int], promised: bool, home: bytes
) -> None:
    """Whoever is chosen has less than so many times the mean, or few; who has nothing of the
    prompt, never more than the mean asks for."""
    loads = {Holder(i, 1): load for i, load in enumerate(numbers)}
    holders = tuple(holder for holder in loads if holder.index in holding)
    chosen = choose(
        PrefixTrace((Prefix(b"9000", 9000, promised),), home),
        loads,
        believed({"9000": holders}),
        1.0,
    ).holder
    bound = LOAD_FACTOR * (sum(numbers) + 1) / len(numbers) + 1
    assert loads[chosen] < (max(bound, PATIENCE) if chosen in holders else bound)


def test_keys_spread_and_stay() -> None:
    """Without beliefs keys are spread evenly, and when one worker is gone only its own move."""
    affinity, loads = Affinity(), dict.fromkeys((A, B, C), 0)
    homes = [str(i) for i in range(300)]
    before = {home: choose(traced(1000, home=home), loads, affinity, 0.0).holder for home in homes}
    assert all(70 <= list(before.values()).count(holder) <= 130 for holder in loads)
    after = {
        home: choose(traced(1000, home=home), {A: 0, B: 0}, affinity, 0.0).holder for home in homes
    }
    assert all(after[home] == before[home] for home in homes if before[home] != C)


# The router ---------------------------------------------------------------------------------------


async def answered(router: Router, request: Request) -> str:
    """The text of a whole answer."""
    events = [event async for event in router.generate(request)]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def named(*names: str) -> list[ScriptedBackend]:
    """Workers that say their names."""
    return [ScriptedBackend(Script(texts=(name,))) for name in names]


def refusing(error: Exception, after: int | None = None) -> Callable[[Request], Script]:
    return lambda request: Script(error=error, error_after=after)


async def first_choice(workers: list[ScriptedBackend], request: Request) -> int:
    """Who would get this request of an idle router that has seen nothing."""
    router = Router(named(*(str(i) for i in range(len(workers)))))
    return int(await answered(router, request))


async def test_who_refuses_before_the_answer_began_is_passed_over() -> None:
    """A queue that is full or a process that has just died: another worker answers, and gets the
    next turn, too."""
    workers, request = named("0", "1", "2"), asked(said("hi"))
    first = await first_choice(workers, request)
    workers[first] = ScriptedBackend(refusing(Overloaded("full")))
    reasons: list[str] = []
    router = Router(workers, on_choice=reasons.append)
    told = await answered(router, request)
    assert told != str(first)
    assert reasons == ["new", "passed"]
    assert await answered(router, request) == told
    assert len(workers[first].requests) == 1


@pytest.mark.parametrize("error", [EngineFailed("broken"), InvalidRequest("bad")])
async def test_other_errors_are_told(error: Exception) -> None:
    """What one worker says of a request, every other would."""
    workers = [ScriptedBackend(refusing(error)) for _ in range(2)]
    with pytest.raises(type(error)):
        await answered(Router(workers), asked(said("hi")))
    assert sum(len(worker.requests) for worker in workers) == 1


async def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    """The client has its headers."""
    workers = [ScriptedBackend(refusing(Overloaded("died"), after=1)) for _ in range(2)]
    with pytest.raises(Overloaded, match="died"):
        await answered(Router(workers), asked(said("hi")))
    assert sum(len(worker.requests) for worker in workers) == 1


async def test_when_all_refuse_the_last_refusal_is_told() -> None:
    """Every worker is asked once."""
    workers = [ScriptedBackend(refusing(Overloaded("full", retry_after_s=1.0))) for _ in range(3)]
    with pytest.raises(Overloaded, match="full"):
        await answered(Router(workers), asked(said("hi")))
    assert [len(worker.requests) for worker in workers] == [1, 1, 1]


async def test_requests_wait_for_the_first_worker_that_is_ready() -> None:
    """While all load; not for ever."""
    workers = named("0", "1")
    for worker in workers:
        worker.die()
    router = Router(workers)
    assert not router.ready
    early = asyncio.create_task(answered(router, asked(said("hi"))))
    await asyncio.sleep(0)
    workers[1].start()
    assert await early == "1"
    assert router.ready
    workers[1].die()
    with pytest.raises(Overloaded, match="loading"):
        await answered(Router(workers, ready_s=0.01), asked(said("hi")))


async def test_nothing_is_served_before_all_workers_have_loaded_once() -> None:
    """A conversation from before the start would be sent to another worker than the one whose SSD
    has it."""
    workers = named("0", "1")
    workers[0].die()
    workers[0].life = 0
    router = Router(workers)
    assert not router.ready
    early = asyncio.create_task(answered(router, asked(said("hi"))))
    await asyncio.sleep(0)
    assert not early.done()
    workers[0].start()
    assert router.ready
    assert await early in ("0", "1")


async def test_counts_go_to_whoever_is_free() -> None:
    """Any worker that is ready counts; the model is known as soon as one is."""
    workers = named("0", "1")
    workers[0].die()
    workers[0].model = None
    workers[1].num_tokens = 11
    router = Router(workers)
    assert await router.count(Prompt((said("hi"),))) == 11
    assert router.model is workers[1].model


async def test_who_cannot_count_is_passed_over() -> None:
    """A process that dies while it counts costs its request nothing, as long as there is another;
    then its refusal is told."""

    class Dying(ScriptedBackend):
        async def count(self, prompt: Prompt) -> int:
            raise Overloaded("died")

    prompt, healthy = Prompt((said("hi"),)), ScriptedBackend()
    assert await Router([Dying(), healthy]).count(prompt) == healthy.num_tokens
    router = Router([Dying(), Dying()])
    with pytest.raises(Overloaded, match="died"):
        await router.count(prompt)
    assert router._loads == [0, 0]


async def test_a_hot_key_spills_over() -> None:
    """Unmarked and short: one key's requests at once are spread, none of the workers has more than
    its bound."""
    gate = asyncio.Event()
    workers = [ScriptedBackend(Script(before_started=gate)) for _ in range(4)]
    router = Router(workers)
    tasks = [
        asyncio.create_task(answered(router, asked(said("hi"), routing_key=b"hot")))
        for _ in range(16)
    ]
    while sum(worker.num_open for worker in workers) < 16:
        await asyncio.sleep(0)
    assert max(worker.num_open for worker in workers) <= 5
    gate.set()
    await asyncio.gather(*tasks)


async def test_nothing_is_believed_of_what_is_not_kept() -> None:
    """`no-store` leaves nothing behind to come back to."""
    router = Router(named("0", "1"))
    await answered(router, asked(said("hi"), plan=CachePlan(store=False)))
    assert len(router._affinity) == 0


async def test_cancelling_reaches_the_worker() -> None:
    """And the worker counts as free again."""
    gate = asyncio.Event()
    worker = ScriptedBackend(Script(before_started=gate))
    router = Router([worker])
    task = asyncio.create_task(answered(router, asked(said("hi"))))
    await worker.held.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.wait_for(worker.aborted.wait(), 5)
    assert router._loads == [0]


def test_a_model_without_workers_is_a_mistake() -> None:
    """Nothing could ever be answered."""
    with pytest.raises(ValueError, match="worker"):
        Router([])
