"""The small parts: ids, limits, feeds, the catalog, metrics, logs and the text to paste."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from decimal import Decimal

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import EngineStats, Finished
from engine.stats import engine_numbers
from engine.types import CachePlan, CacheReport
from gateway.backends.base import Event
from gateway.bill.headers import Bill
from gateway.bill.record import Record
from gateway.calls.catalog import ModelCatalog
from gateway.calls.exchange import Call
from gateway.calls.feed import EventFeed
from gateway.cli.startup_banner import startup_banner
from gateway.errors import EngineFailed, Overloaded, UnknownModel
from gateway.http.routes import guess_wire
from gateway.ids import request_id
from gateway.operate.logs import log_record, set_up_logging
from gateway.operate.metrics import Metrics
from gateway.serve.limits import InFlight
from gateway.waits import first_of
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.registry import WIRES
from policies.pricing import Usage, charge
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import make_policy


def make_record(**more: object) -> Record:
    """A billed request of 1,000 tokens: 600 read, 300 written for 5 minutes, 7 generated."""
    policy = make_policy()
    rules, prices = (
        policy.rules_for("claude-sonnet-5", "anthropic"),
        policy.prices_for("claude-sonnet-5"),
    )
    usage = Usage(input=100, cache_read=600, cache_write=((300.0, 300),), output=7)
    report = CacheReport(num_prompt=1000, skipped=610)
    bill = Bill(
        CachePlan(), report, rules, usage, charge(usage, prices), prices.version, final=True
    )
    fields: dict[str, object] = {
        "request_id": "r",
        "route": "messages",
        "wire": "anthropic",
        "outcome": "answered",
        "status": 200,
        "at_s": 0.0,
        "total_s": 1.5,
        "tenant": "default",
        "model": "claude-sonnet-5",
        "served_by": "m",
        "bill": bill,
        "ttft_s": 0.2,
        "phases": {"parse": 0.001},
    }
    return Record(**fields | more)  # type: ignore[arg-type]


# Ids ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["abc", "A-1_2.3:4", "x" * 128])
def test_sane_client_ids_are_kept(client: str) -> None:
    """Plain short ids are echoed."""
    assert request_id(client, 0.0) == client


@pytest.mark.parametrize("client", [None, "", "a b", "x" * 129, "a\r\nb", "ä", '"'])
def test_other_ids_are_replaced(client: str | None) -> None:
    """Anything else becomes a version 7 UUID of the time."""
    made = uuid.UUID(request_id(client, 1_700_000_000.123))
    assert (made.version, made.variant, made.int >> 80) == (7, uuid.RFC_4122, 1_700_000_000_123)


def test_ids_sort_by_time() -> None:
    """Later requests have later ids."""
    assert request_id(None, 1000.0) < request_id(None, 1000.002)


def test_ids_in_the_providers_form() -> None:
    """Anthropic's begin with `req_`, OpenAI's are as they are."""

    def id_headers(wire: Wire, request_id: str) -> dict[str, str]:
        return Call(request_id, "r", wire, {}, 0.0, 0.0).id_headers

    assert id_headers(MESSAGES_WIRE, "a-b") == {"pcg-request-id": "a-b", "request-id": "req_ab"}
    assert id_headers(MESSAGES_WIRE, "req_1")["request-id"] == "req_1"
    assert id_headers(CHAT_WIRE, "a-b") == {"pcg-request-id": "a-b", "x-request-id": "a-b"}


@pytest.mark.parametrize(
    ("path", "headers", "wire"),
    [
        ("/v1/messages", {}, "anthropic"),
        ("/v1/messages/count_tokens", {}, "anthropic"),
        ("/v1/chat/completions", {"x-api-key": ""}, "openai"),
        ("/v1/responses", {"anthropic-version": ""}, "responses"),
        ("/v1/responses/resp_1", {}, "responses"),
        ("/v1/models", {"anthropic-version": ""}, "anthropic"),
        ("/v1/models", {"x-api-key": ""}, "anthropic"),
        ("/v1/models", {}, "openai"),
        ("/", {}, "openai"),
    ],
)
def test_whose_format(path: str, headers: dict[str, str], wire: str) -> None:
    """The path decides where it can, then the headers, else OpenAI."""
    assert guess_wire(WIRES, path, headers) == wire


# Limits and waits ---------------------------------------------------------------------------------


async def test_places_are_bounded_and_given_back() -> None:
    """The place after the last is refused; a place is free again however its request ended."""
    in_flight = InFlight(1)
    with in_flight.slot(), pytest.raises(Overloaded), in_flight.slot():
        raise AssertionError
    with pytest.raises(KeyError), in_flight.slot():
        raise KeyError
    await in_flight.wait_idle()
    in_flight.close()
    with pytest.raises(Overloaded, match="shutting down"), in_flight.slot():
        raise AssertionError


async def test_first_of_leaves_nothing_behind() -> None:
    """The losers are cancelled and over when the winner's result is returned, and when the wait
    itself is cancelled."""
    ended: list[str] = []

    async def never(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def soon() -> str:
        await asyncio.sleep(0)
        return "won"

    assert await first_of(never("a"), soon()) == "won"
    assert ended == ["a"]
    waiting = asyncio.create_task(first_of(never("b"), never("c")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sorted(ended) == ["a", "b", "c"]


# Feeds --------------------------------------------------------------------------------------------


async def test_a_deadline_does_not_disturb_the_backend() -> None:
    """Silence is None; the event that was waited for comes with the next call, once."""
    gate = asyncio.Event()

    async def events() -> AsyncIterator[Event]:
        await gate.wait()
        yield Finished("r", "stop", 0)

    async with aclosing(EventFeed(events())) as reader:
        assert await reader.next(0.0) is None
        assert await reader.next(0.001) is None
        gate.set()
        assert isinstance(await reader.next(), Finished)
        with pytest.raises(EngineFailed):
            await reader.next()


async def test_closing_a_feed_closes_the_backend() -> None:
    """Also in the middle of a step, and when the step fails while it is being closed."""
    closed = asyncio.Event()

    async def events() -> AsyncIterator[Event]:
        try:
            await asyncio.Event().wait()
            yield Finished("r", "stop", 0)
        finally:
            closed.set()
            raise ValueError

    async with aclosing(EventFeed(events())) as reader:
        assert await reader.next(0.001) is None
    assert closed.is_set()


# Catalog ------------------------------------------------------------------------------------------


def test_models_by_name_and_alias() -> None:
    """Aliases find their model; what is not loaded is not listed; every model needs a backend."""
    policy = make_policy("models: [{name: a, aliases: ['claude-*']}, {name: b, aliases: []}]")
    first, second = ScriptedBackend(), ScriptedBackend()
    second.model = None
    catalog = ModelCatalog(policy, {"a": first, "b": second})
    assert catalog.find("claude-x").backend is first
    assert catalog.find("b").backend is second
    assert list(catalog.listed("openai")) == ["a"]
    for unknown in ("c", "gpt-5"):
        with pytest.raises(UnknownModel):
            catalog.find(unknown)
    with pytest.raises(UnknownModel):
        catalog.info("b", "openai")
    with pytest.raises(ValueError, match="b"):
        ModelCatalog(policy, {"a": first})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("llama3", "model: llama3; did you mean llama-3.2-1b? Served here: smol, b, llama-3.2-1b"),
        (
            "meta/Llama-3.2-1B:latest",
            "model: meta/Llama-3.2-1B:latest; did you mean llama-3.2-1b? "
            "Served here: smol, b, llama-3.2-1b",
        ),
        ("grok", "model: grok. Served here: smol, b, llama-3.2-1b"),
    ],
)
def test_an_unknown_id_is_answered_with_the_known_ones(asked: str, message: str) -> None:
    """The nearest is named; patterns are no ids."""
    policy = make_policy(
        "models: [{name: smol, aliases: [llama-3.2-1b, 'claude-*']}, {name: b, aliases: []}]"
    )
    catalog = ModelCatalog(policy, {"smol": ScriptedBackend(), "b": ScriptedBackend()})
    with pytest.raises(UnknownModel) as caught:
        catalog.find(asked)
    assert caught.value.message == message


def test_of_many_ids_some_are_named() -> None:
    """An error stays short, and an id too long to be one is no use for a comparison."""
    names = [f"m{i}" for i in range(30)]
    policy = make_policy(
        f"models: [{', '.join(f'{{name: {name}, aliases: []}}' for name in names)}]"
    )
    catalog = ModelCatalog(policy, {name: ScriptedBackend() for name in names})
    for asked in ("zzzz", "z" * 5000):
        with pytest.raises(UnknownModel) as caught:
            catalog.find(asked)
        assert caught.value.message.endswith("Served here: m0, m1, m2, m3, m4, m5, m6, m7, ...")
        assert len(caught.value.message) < 400


def test_the_list_says_of_each_id_which_model_answers() -> None:
    """An alias shows the model it finds, not the first one; patterns are not shown, and no id
    twice."""
    aliases = ("['claude-*', mine, 'gpt-?']", "[b, mine, claude-x, 'o[0-9]', yours]")
    policy = make_policy(
        f"models: [{{name: a, aliases: {aliases[0]}}}, {{name: b, aliases: {aliases[1]}}}]"
    )
    first, second = ScriptedBackend(), ScriptedBackend()
    catalog = ModelCatalog(policy, {"a": first, "b": second})
    shown = {"a": first, "b": second, "mine": first, "claude-x": first, "yours": second}
    listed = catalog.listed("openai")
    assert [(name, id(info)) for name, info in listed.items()] == [
        (name, id(b.model)) for name, b in shown.items()
    ]


# Metrics, logs ----------------------------------------------------------------------------


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of an exposition, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_metrics_count_what_was_billed() -> None:
    """One record: each number is where its meaning says."""
    metrics = Metrics()
    metrics.add(make_record())
    shown = samples(metrics.scrape({}, 3))
    assert shown["pcg_prompt_tokens_total", (("kind", "read"),)] == 600
    assert shown["pcg_prompt_tokens_total", (("kind", "write_5m"),)] == 300
    assert shown["pcg_prompt_tokens_total", (("kind", "uncached"),)] == 100
    assert shown["pcg_prefill_skipped_tokens_total", ()] == 610
    assert shown["pcg_output_tokens_total", ()] == 7
    assert shown["pcg_inflight", ()] == 3
    assert shown["pcg_overhead_seconds_count", (("phase", "parse"),)] == 1


def test_failed_requests_are_counted_and_not_billed() -> None:
    """An error is one more request of its class, and no tokens."""
    metrics = Metrics()
    metrics.add(
        make_record(outcome="failed", status=529, error="Overloaded", bill=None, ttft_s=None)
    )
    shown = samples(metrics.scrape({}, 0))
    labels = (
        ("api", "anthropic"),
        ("error_type", "Overloaded"),
        ("route", "messages"),
        ("status_class", "5xx"),
    )
    assert shown["pcg_requests_total", labels] == 1
    assert shown["pcg_output_tokens_total", ()] == 0


def keys(kind: str) -> list[str]:
    """The keys of an engine's counters or gauges."""
    return [number.key for number in engine_numbers() if number.kind == kind]


def test_every_number_of_the_engine_is_shown_once() -> None:
    """Each counter and gauge of `engine/stats.py` appears as exactly one sample, for each model
    that serves."""
    stats = EngineStats(
        "s",
        {name: float(i) for i, name in enumerate(keys("counter"), start=1000)},
        {name: float(i) for i, name in enumerate(keys("gauge"), start=2000)},
    )
    shown = samples(Metrics().scrape({("a", 1): stats, ("down", 0): None}, 0))
    of_engine = [
        value for (_, labels), value in shown.items() if ("model", "a") in labels and value >= 1000
    ]
    assert sorted(of_engine) == sorted([*stats.counters.values(), *stats.gauges.values()])
    assert (
        shown["pcg_kv_bytes", (("model", "a"), ("tier", "device"), ("worker", "1"))]
        == stats.gauges["cache_device_nbytes"]
    )
    assert shown["pcg_worker_up", (("model", "a"), ("worker", "1"))] == 1
    assert shown["pcg_worker_up", (("model", "down"), ("worker", "0"))] == 0


def test_a_tier_that_is_not_there_has_no_series() -> None:
    """Its numbers are unknown, not 0; those of the others are shown."""
    gauges = dict.fromkeys(keys("gauge"), 1.0) | {"tier_redis_up": -1.0, "tier_ssd_up": 0.0}
    shown = samples(
        Metrics().scrape(
            {("a", 1): EngineStats("s", dict.fromkeys(keys("counter"), 1.0), gauges)}, 0
        )
    )
    tiers = {value for _, labels in shown for name, value in labels if name in ("tier", "store")}
    assert tiers == {"device", "ram", "ssd", "all"}
    assert shown["pcg_store_up", (("model", "a"), ("store", "ssd"), ("worker", "1"))] == 0


def test_the_description_is_complete() -> None:
    """`describe` lists each family of the exposition, with the same help, and nothing else."""
    metrics = Metrics()
    described = {metric.name: metric.help for metric in metrics.describe()}
    families = list(metrics.registry.collect())
    shown = {f.name + ("_total" if f.type == "counter" else ""): f.documentation for f in families}
    assert described == shown
    assert all(text.endswith(".") for text in described.values())


def test_logs_are_json_without_prompts() -> None:
    """One line per request with counts and cost; fields that are unknown are absent."""
    out = io.StringIO()
    set_up_logging(out)
    try:
        log_record(make_record())
        log_record(make_record(bill=None, ttft_s=None, tenant=None))
    finally:
        structlog.reset_defaults()
    billed, refused = (json.loads(line) for line in out.getvalue().splitlines())
    assert (billed["read"], billed["write"], billed["input"], billed["output"]) == (
        600,
        300,
        100,
        7,
    )
    assert billed["ttft_ms"] == 200.0
    assert Decimal(billed["usd"]) > 0
    assert {"read", "usd", "tenant", "ttft_ms"}.isdisjoint(refused)


def test_a_log_that_cannot_be_written_costs_its_lines_alone() -> None:
    """A full disk, or a pipe that nobody reads: no error reaches the request, and later lines are
    written again."""

    class Full(io.StringIO):
        is_full = True

        def flush(self) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")

    out = Full()
    set_up_logging(out)
    try:
        log_record(make_record())
        structlog.get_logger("pcg").error("bug")
        out.is_full = False
        log_record(make_record())
    finally:
        structlog.reset_defaults()
    assert json.loads(out.getvalue().splitlines()[-1])["event"] == "request"


def test_what_to_paste_names_the_address() -> None:
    """Each command and program points at the gateway."""
    text = startup_banner("http://127.0.0.1:1", {"m": ("claude-*",)})
    assert text.count("http://127.0.0.1:1") >= 5
    assert "m (also as claude-*)" in text
