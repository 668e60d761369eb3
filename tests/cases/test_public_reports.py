"""What users of prompt caching ran into elsewhere, case by case: the whole gateway over an engine of real parts.

The numbers are those of a collection of public bug reports. In this engine every byte of a prompt is a token and the model is a
hash of all it can see, so that counts can be said by hand and a wrong answer shows.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.store.base import Item
from engine.store.memory import MemoryStore
from gateway.why import Circumstances, explain
from gateway.wire.anthropic import AnthropicWire
from gateway.wire.base import Answer
from gateway.wire.openai import OpenAIWire
from policies.pricing import Prices, Usage, charge
from tests.fakes.backend import Script, ScriptedBackend
from tests.fakes.engine_backend import EngineBackend
from tests.fakes.rig import SYSTEM, Rig, marked, turn
from tests.fakes.tokenizer import ByteTokenizer
from tests.gateway.serving import ANTHROPIC, OPENAI, Served, make_policy, serving

MODEL = "smollm2-135m-instruct"
"""Anthropic's rules with a minimum of 64 tokens."""

CC = {"type": "ephemeral"}
CC1H = {"type": "ephemeral", "ttl": "1h"}


def words(num_bytes: int, seed: str = "w") -> str:
    """A text of so many tokens, always the same."""
    return (f"{seed}0 " + " ".join(f"{seed}{i}" for i in range(num_bytes)))[:num_bytes]


def text(value: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": value, **({"cache_control": mark} if mark else {})}


def say(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": [text(block) if isinstance(block, str) else block for block in blocks]}


def tool(name: str, mark: Any = None, **more: Any) -> dict[str, Any]:
    fields = {"name": name, "description": words(40, name), "input_schema": {"type": "object"}, "cache_control": mark}
    return fields | more


def call(name: str = "t1") -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "find", "input": {"q": "x"}}


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as the client gets it."""

    status: int
    body: Any
    headers: Any

    @property
    def u(self) -> tuple[int, int, int, int]:
        """Read, written for five minutes, for an hour, uncached."""
        assert self.status == 200, self.body
        usage = self.body["usage"]
        written = usage["cache_creation"]
        return (
            usage["cache_read_input_tokens"],
            written["ephemeral_5m_input_tokens"],
            written["ephemeral_1h_input_tokens"],
            usage["input_tokens"],
        )

    @property
    def read(self) -> int:
        return self.u[0]

    @property
    def written(self) -> int:
        return self.u[1] + self.u[2]

    @property
    def error(self) -> str:
        assert self.status == 400, self.body
        assert self.body["error"]["type"] == "invalid_request_error"
        return str(self.body["error"]["message"])

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.body["content"])


@dataclass(frozen=True, slots=True)
class Desk:
    """A gateway and one client of it."""

    served: Served
    backend: EngineBackend

    async def ask(self, *messages: Any, headers: dict[str, str] | None = None, **body: Any) -> Told:
        """One request of one output token unless told otherwise."""
        fields = {"model": MODEL, "max_tokens": 1, "messages": messages or [say("user", "hi")]} | body
        return await self.send(orjson.dumps(fields), headers)

    async def send(self, body: bytes, headers: dict[str, str] | None = None) -> Told:
        async with self.served.http.post("/v1/messages", data=body, headers=ANTHROPIC | (headers or {})) as response:
            return Told(response.status, orjson.loads(await response.read()), response.headers)

    async def count(self, *messages: Any, **body: Any) -> int:
        fields = {"model": MODEL, "messages": messages} | body
        async with self.served.http.post("/v1/messages/count_tokens", json=fields, headers=ANTHROPIC) as response:
            return int((await response.json())["input_tokens"])

    def advance(self, seconds: float) -> None:
        self.served.clock.advance(seconds)


@asynccontextmanager
async def opened(policy: str = "", **options: Any) -> AsyncIterator[Desk]:
    async with EngineBackend(**options) as backend, serving(backend, policy) as served:
        yield Desk(served, backend)


REPAIR = "caching: {marker_errors: repair}"


async def test_case_01_clock_text_at_the_head() -> None:
    """A miss, and it says where; `why` says what. With the clock behind the mark it is read."""
    async with opened() as desk:
        bodies = [{"system": [text(f"Current time is 15:09:{s}. {words(200)}", CC)]} for s in (20, 34)]
        first, second = [await desk.ask(**body) for body in bodies]
        assert (first.read, second.read) == (0, 0)
        assert second.u[1] == first.u[1] > 200
        assert second.headers["pcg-miss-reason"].startswith("system_changed; at=system/0; token=")
        for seconds in (20, 34):
            told = await desk.ask(say("user", f"It is 15:09:{seconds}. hi"), system=[text(words(200), CC)])
        assert told.read > 200
    raw = [orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": [say("user", "hi")]} | body) for body in bodies]
    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))
    finding = explain(raw[0], raw[1], make_policy(), renderer, Circumstances())
    assert finding.difference is not None
    assert (finding.cause, str(finding.position), finding.difference.character) == ("clock", "system/0", 22)


async def test_case_02_a_nonce_as_first_system_block() -> None:
    """It is dropped, and counted; text that only mentions it reaches the model unchanged."""

    def body(nonce: str) -> dict[str, Any]:
        header = f"x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch={nonce};"
        return {"system": [text(header), text(words(150, "a"), CC), text(words(150, "b"), CC)]}

    async with opened() as desk:
        first, second = [await desk.ask(**body(nonce)) for nonce in ("fa690", "0aaa9")]
        assert second.read == first.written > 300
        assert "billing-nonce-dropped" in second.headers["pcg-warning"]
        async with desk.served.http.get("/metrics") as response:
            assert 'pcg_changed_requests_total{warning="billing-nonce-dropped"} 2.0' in await response.text()
        control = "please explain x-anthropic-billing-header"
        plain = await desk.count(say("user", "hi"), system=[text("y")])
        assert await desk.count(say("user", "hi"), system=[text(control), text("y")]) > plain + len(control)


async def test_case_03_tool_order_changes() -> None:
    """Preserved, another order is a miss from the first tool on; ordered by name it is the same prompt."""
    orders = (("zeta", "alpha", "mu"), ("alpha", "mu", "zeta"))

    async def ask(desk: Desk) -> list[Told]:
        return [await desk.ask(tools=[*map(tool, names[:-1]), tool(names[-1], CC)]) for names in orders]

    async with opened() as desk:
        first, second = await ask(desk)
        assert second.read == 0
        assert second.headers["pcg-miss-reason"].startswith("tools_changed; at=tools/0")
    async with opened("caching: {normalize: {tool_order: by_name}}") as desk:
        first, second = await ask(desk)
        assert second.read == first.written > 120


async def test_case_04_json_key_order() -> None:
    """Preserved, another order of keys is another prompt; sorted it is the same, but for arrays that mean their order."""

    def body(properties: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [tool("find", CC, input_schema={"type": "object", "properties": properties})]}

    one, other = {"city": {}, "unit": {}}, {"unit": {}, "city": {}}
    async with opened() as desk, opened() as fresh:
        first = await desk.ask(**body(one))
        assert (await desk.ask(**body(other))).read == 0
        assert (await desk.ask(**body(one))).read == first.written
        assert (await fresh.ask(**body(one))).u == first.u
    async with opened("caching: {normalize: {json_keys: sort}}") as desk:
        first = await desk.ask(**body(one))
        assert (await desk.ask(**body(other))).read == first.written
        assert (await desk.ask(**body({"unit": {"enum": ["b", "a"]}}))).read == 0
        assert (await desk.ask(**body({"unit": {"enum": ["a", "b"]}}))).read == 0


async def test_case_05_escapes_and_unicode_forms() -> None:
    """An escaped character is the character; another Unicode form or one more space is another text."""
    composed = words(100) + "caf\u00e9"
    decomposed = unicodedata.normalize("NFD", composed)

    def body(system: str) -> dict[str, Any]:
        return {"model": MODEL, "max_tokens": 1, "system": [text(system, CC)], "messages": [say("user", "hi")]}

    async with opened() as desk:
        literal = orjson.dumps(body(composed))
        first = await desk.send(literal.replace("\u00e9".encode(), b"\\u00e9"))
        assert (await desk.send(literal)).read == first.written > 100
        for changed in (decomposed, composed + " "):
            told = await desk.send(orjson.dumps(body(changed)))
            assert told.read == 0
            assert "at=system/0" in told.headers["pcg-miss-reason"]


async def test_case_06_a_mark_on_an_empty_text_block() -> None:
    """Strict is the API's 400 with its path; repaired, the mark moves; automatic caching walks back."""
    empty = say("user", words(100), text("", CC))
    async with opened() as desk:
        told = await desk.ask(empty)
        assert told.error == "messages.0.content.1.text: cache_control cannot be set for empty text blocks"
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
        told = await desk.ask(say("user", image, text("", CC)))
        assert told.error.startswith("messages.0.content.1.text: ")
        assert (await desk.ask(say("user", words(100), text("")), cache_control=CC)).written > 100
    async with opened(REPAIR) as desk:
        told = await desk.ask(empty)
        assert told.written > 100
        assert told.headers["pcg-warning"] == "cache_control-moved"


async def test_case_07_a_mark_on_a_thinking_block() -> None:
    """Strict is the API's 400 with its path; repaired, it is taken off that block alone."""
    thought = {"type": "thinking", "thinking": "..", "signature": "s"}
    turns = [say("user", "q"), say("assistant", thought | {"cache_control": CC}, "hello"), say("user", "r")]
    async with opened() as desk:
        told = await desk.ask(*turns)
        assert told.error == "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"
    async with opened(REPAIR) as desk:
        told = await desk.ask(*turns)
        assert told.headers["pcg-warning"] == "cache_control-removed-from-thinking"
        assert await desk.count(say("user", "q"), say("assistant", thought, "hello"), say("user", "r")) == sum(told.u)


async def test_case_08_more_than_four_breakpoints() -> None:
    """The right number in the 400, the automatic one counted; repaired, anchors and the latest stay."""
    body: dict[str, Any] = {"tools": [tool("a", CC)], "system": [text("s", CC)]}
    three = [say("user", text("a", CC), text("b", CC), text("c", CC))]
    message = "A maximum of 4 blocks with cache_control may be provided. Found 5."
    async with opened() as desk:
        assert (await desk.ask(*three, **body)).error == message
        four = [say("user", text("a", CC), text("b", CC), text("c", CC), text("d", CC), "e")]
        assert (await desk.ask(*four, cache_control=CC)).error == message
        assert (await desk.ask(*three, cache_control=CC)).status == 200
    async with opened(REPAIR) as desk:
        told = await desk.ask(*three, **body)
        assert (told.status, told.headers["pcg-warning"]) == (200, "cache_control-dropped")


async def test_case_09_mixed_ttls_in_the_wrong_order() -> None:
    """The 400 names the block that comes too late; in the right order each class is billed its own stretch."""
    async with opened() as desk:
        told = await desk.ask(tools=[tool("a", CC)], system=[text(words(100), CC1H)])
        assert told.error.startswith(
            "system.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'"
        )
        told = await desk.ask(tools=[tool("a", CC1H)], system=[text(words(100), CC)])
        assert told.u[0] == 0
        assert min(told.u[1], told.u[2]) >= 100
    async with opened(REPAIR) as desk:
        told = await desk.ask(tools=[tool("a", CC)], system=[text(words(100), CC1H)])
        assert told.headers["pcg-warning"] == "cache_control-ttl-downgraded"


async def test_case_10_the_look_back_window() -> None:
    """Blocks 10, 15 and 35 of the vendor's example: 10 is read from 15; from 35 nothing is; marked at 15 and 35, 15 is."""

    def blocks(num: int, *marks: int) -> dict[str, Any]:
        return say("user", *(text(words(20, f"b{i}x"), CC if i in marks else None) for i in range(1, num + 1)))

    async with opened() as desk:
        first = await desk.ask(blocks(10, 10))
        second = await desk.ask(blocks(15, 15))
        assert second.read == first.written
        told = await desk.ask(blocks(35, 15, 35))
        assert told.read == second.read + second.written
    async with opened() as desk:
        await desk.ask(blocks(15, 15))
        assert (await desk.ask(blocks(35, 35))).read == 0


async def test_case_11_a_burst_of_identical_cold_requests() -> None:
    """One prefills and writes, the others wait and read; without single-flight all write and one entry is left."""
    system = [text(words(500), CC)]
    async with opened() as desk:
        told = await asyncio.gather(*(desk.ask(say("user", f"k={i}"), system=system) for i in range(8)))
        assert sorted(answer.written for answer in told)[:7] == [0] * 7
        assert sorted(answer.read for answer in told) == [0] + [max(answer.written for answer in told)] * 7
        computed = [part for step in desk.backend.runner.steps for part in step if part.start == 0 and part.num_tokens > 400]
        assert len(computed) == 1
    async with opened("caching: {single_flight: {enabled: false}}") as desk:
        told = await asyncio.gather(*(desk.ask(say("user", f"k={i}"), system=system) for i in range(8)))
        assert {sum(answer.u) for answer in told} == {sum(told[0].u)}
        assert (await desk.ask(system=system)).read == max(answer.written for answer in told)


async def test_case_12_inclusive_or_exclusive_input_tokens() -> None:
    """One record, two conventions: Anthropic leaves out what was cached, OpenAI does not; the price is one."""
    usage = Usage(input=4, cache_read=2455, output=23)
    anthropic, gpt = AnthropicWire(), OpenAIWire()
    body = orjson.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]})
    answer = Answer("x", "stop", None, usage)
    ours = orjson.loads(anthropic.encode_answer(anthropic.parse(body, {}, request_id="r"), answer, created_at_s=0))["usage"]
    theirs = orjson.loads(gpt.encode_answer(gpt.parse(body, {}, request_id="r"), answer, created_at_s=0))["usage"]
    assert (ours["input_tokens"], ours["cache_read_input_tokens"]) == (4, 2455)
    assert (theirs["prompt_tokens"], theirs["prompt_tokens_details"]["cached_tokens"], theirs["total_tokens"]) == (
        2459,
        2455,
        2482,
    )
    prices = make_policy().prices_for("claude-sonnet-4-6")
    assert charge(usage, prices).total == Decimal("0.0010935")


async def test_case_13_hour_writes_priced_apart() -> None:
    """600k for five minutes and 400k for an hour at $5: 3.75 + 4.00."""
    prices = Prices("v", Decimal(5), Decimal(25), Decimal("0.1"), {300.0: Decimal("1.25"), 3600.0: Decimal(2)})
    assert charge(Usage(0, 0, ((3600.0, 400_000), (300.0, 600_000))), prices).total == Decimal("7.75")
    assert charge(Usage(0, 0, ((300.0, 1_000_000),)), prices).total == Decimal("6.25")


async def test_case_15_an_image_becomes_text() -> None:
    """The miss begins at that message and is named; the same image with other line breaks is the same image."""
    wire = AnthropicWire()

    def body(block: Any) -> bytes:
        turns = [say("user", block, "look"), say("assistant", words(100)), say("user", text("next", CC))]
        return orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": turns})

    def image(data: str) -> dict[str, Any]:
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}

    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))
    pointer = text("[Image: source: /tmp/1.png]")
    finding = explain(body(image("aGVsbG8h")), body(pointer), make_policy(), renderer, Circumstances())
    assert (finding.cause, str(finding.position), finding.num_read) == ("image", "messages/0/0", 0)
    prompts = [wire.parse(body(image(data)), {}, request_id="r").prompt for data in ("aGVsbG8h", "aGVs\nbG8h")]
    assert prompts[0] == prompts[1]


async def test_case_16_tool_choice_toggled() -> None:
    """Tools and system stay readable, the messages are written again; back again, everything is read."""
    body: dict[str, Any] = {"tools": [tool("find", CC)], "system": [text(words(100), CC)]}
    turns = [say("user", text(words(100, "m"), CC), "q")]
    async with opened() as desk:
        first = await desk.ask(*turns, **body)
        second = await desk.ask(*turns, **body, tool_choice={"type": "none"})
        assert 0 < second.read < first.written
        assert second.read + second.written == first.written
        assert second.headers["pcg-miss-reason"].startswith("parameters_changed; at=messages/0/0")
        assert (await desk.ask(*turns, **body)).read == first.written


async def test_case_17_effort_changed() -> None:
    """The default in words is the default; another effort is another entry, and going back reads the first."""
    turns = [say("user", text(words(100), CC), "q")]
    async with opened() as desk:
        first = await desk.ask(*turns)
        assert (await desk.ask(*turns, output_config={"effort": "high"})).read == first.written
        assert (await desk.ask(*turns, output_config={"effort": "low"})).read == 0
        assert (await desk.ask(*turns)).read == first.written


async def test_case_18_the_model_switched() -> None:
    """An alias of the same model reads; another model has a cache of its own, and the diagnosis says so first."""
    policy = "models: [{name: m1, aliases: [m1-fast]}, {name: m2, aliases: [m2-fast]}]"
    body: dict[str, Any] = {"system": [text(words(100), CC)], "diagnostics": {"previous_message_id": None}}
    async with EngineBackend("m1") as one, EngineBackend("m2") as two:
        effective = make_policy(policy)
        assert [model.name for model in effective.models] == ["m1", "m2"]
        async with serving(one, policy) as served:
            desk = Desk(served, one)
            first = await desk.ask(**body, model="m1")
            assert (await desk.ask(**body, model="m1-fast")).read == first.written > 100
            found = await desk.ask(**body | {"model": "m2", "diagnostics": {"previous_message_id": first.body["id"]}})
            assert found.body["diagnostics"]["cache_miss_reason"]["type"] == "model_changed"
        async with serving(two, policy) as served:
            assert (await Desk(served, two).ask(**body, model="m2")).read == 0


async def test_case_19_below_the_minimum() -> None:
    """63 tokens are too few and say so, 64 are enough; of two marks only the long enough one writes."""
    async with opened() as desk:
        head = await desk.count(say("user", "x"), system=[text("y")]) - await desk.count(say("user", "x"))
        probe = await desk.ask(say("user", "x"), system=[text(words(200), CC)])
        around = probe.written - 200
        assert head > 0
        short, enough = [
            await desk.ask(say("user", "x"), system=[text(words(num - around, f"s{num}"), CC)]) for num in (63, 64)
        ]
        assert (short.u[:3], short.headers["pcg-cache"]) == ((0, 0, 0), "below-min")
        assert enough.u[:2] == (0, 64)
        two = await desk.ask(say("user", "x"), system=[text(words(20, "p"), CC), text(words(80, "q"), CC)])
        assert two.written > 100


async def test_case_20_kept_alive_during_a_long_tool_call() -> None:
    """A pre-warm before the time is up keeps the prefix; without it the time is up. The headers tell the time left."""
    body: dict[str, Any] = {"system": [text(words(100), CC)]}
    for pinged in (True, False):
        async with opened() as desk:
            first = await desk.ask(**body)
            assert "ttl=300" in first.headers["Cache-Status"]
            desk.advance(240)
            if pinged:
                assert (await desk.ask(**body, max_tokens=0)).read == first.written
            desk.advance(240)
            told = await desk.ask(**body)
            assert told.read == (first.written if pinged else 0)
            assert told.headers["pcg-cache"] == ("hit" if pinged else "expired")


async def test_case_21_a_read_refreshes_for_free() -> None:
    """Through a longer prefix the shorter one inside it is refreshed too, at the price of a read."""
    system = [text(words(100), CC)]
    long = say("user", text(words(100, "m"), CC), "q")
    async with opened() as desk:
        first = await desk.ask(long, system=system)
        desk.advance(240)
        assert (await desk.ask(long, system=system)).u[:3] == (first.written, 0, 0)
        desk.advance(242)
        assert (await desk.ask(long, system=system)).read == first.written
        desk.advance(218)
        assert 100 < (await desk.ask(system=system)).read < first.written
        desk.advance(301)
        assert (await desk.ask(system=system)).read == 0


async def test_case_24_a_mark_inside_a_tool_result() -> None:
    """It is a breakpoint at the end of the result, and counts as one of four."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text(words(100), CC)]}
    turns = [say("user", "q"), say("assistant", call()), say("user", result)]
    async with opened() as desk:
        first = await desk.ask(*turns)
        assert first.written > 100
        told = await desk.ask(*turns, say("assistant", "a"), say("user", text("more", CC)))
        assert told.read == first.written
        five = [say("user", *[text("x", CC)] * 4), say("assistant", call()), say("user", result)]
        assert (await desk.ask(*five)).error.endswith("Found 5.")


async def test_case_25_a_compaction_request() -> None:
    """Without the tools it shares nothing, and says so; with the instruction appended it reads the whole conversation."""
    body: dict[str, Any] = {"tools": [tool("find", CC)], "system": [text(words(100), CC)]}
    turns = [say("user", "a"), say("assistant", "b"), say("user", text(words(100, "m"), CC))]
    async with opened() as desk:
        first = await desk.ask(*turns, **body)
        bare = await desk.ask(*turns, **body | {"tools": []})
        assert bare.read == 0
        assert bare.headers["pcg-miss-reason"].split(";")[0] in ("tools_changed", "system_changed", "cold")
        told = await desk.ask(*turns, say("user", "summarise"), **body)
        assert told.read == first.written


async def test_case_26_a_tool_list_that_changes_and_changes_back() -> None:
    """The earlier list's entry is still there; a deferred tool found later leaves the head as it was."""
    system = [text(words(50), CC)]
    two, three = [tool("a"), tool("b", CC)], [tool("a"), tool("b"), tool("c", CC)]
    async with opened() as desk:
        first = await desk.ask(tools=two, system=system)
        assert (await desk.ask(tools=three, system=system)).read < first.written
        assert (await desk.ask(tools=two, system=system)).read == first.written
        deferred = [*two, tool("late", defer_loading=True)]
        assert (await desk.ask(tools=deferred, system=system)).read == first.written
        found = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "tool_reference", "tool_name": "late"}]}
        turns = [say("user", "hi"), say("assistant", call()), say("user", found)]
        told = await desk.ask(*turns, tools=deferred, system=system)
        assert told.read == first.written
        assert await desk.count(*turns, tools=deferred, system=system) > sum(first.u) + 40


async def test_case_27_a_template_that_prints_the_date() -> None:
    """Frozen, midnight changes no prompt; told the day, it changes all of them and says so, once."""
    source = "Today is {{ strftime_now('%d %b %Y') }}. {% for m in messages %}{{ m.content }}{% endfor %}"
    frozen, daily, off = (ChatTemplate(source, name="t", tokens={}, clock=clock) for clock in ("frozen", "utc_day", "off"))
    assert len({template.fingerprint for template in (frozen, daily, off)}) == 3
    question = say("user", text(words(200), CC))
    for template, read in ((frozen, len("Today is 26 Jul 2024. ") + 200 - 1), (daily, 0)):
        async with opened(renderer=Renderer(ByteTokenizer(), template)) as desk:
            desk.advance(-desk.served.clock() % 86400 - 10)
            before = await desk.ask(question)
            desk.advance(20)
            after, again = await desk.ask(question), await desk.ask(question)
        assert (after.read, again.read) == (read, before.written)
        assert before.written == len("Today is 26 Jul 2024. ") + 200 - 1
        if template is daily:
            assert after.headers["pcg-miss-reason"].startswith("template_clock; token=")
        else:
            assert "pcg-miss-reason" not in after.headers


async def test_case_28_one_beginning_and_one_way_to_it() -> None:
    """The template's beginning-of-text token stands once; the same dialogue through both APIs is one prefix."""
    tokenizer = ByteTokenizer(special=("<s>", "</s>"), template_tokens={"bos_token": "<s>"}, stops=("</s>",))
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    wire = AnthropicWire()
    body = orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": [say("user", "hello")]})
    prompt = wire.parse(body, {}, request_id="r").prompt
    rendered = Renderer(tokenizer, ChatTemplate(source, name="t", tokens=tokenizer.template_tokens)).render(prompt)
    assert rendered.token_ids.count(tokenizer.special_tokens["<s>"]) == 1
    assert rendered.token_ids[0] == tokenizer.special_tokens["<s>"]
    async with opened() as desk:
        first = await desk.ask(say("user", "hello"), system=words(200))
        messages = [{"role": "system", "content": words(200)}, {"role": "user", "content": "hello"}]
        chat = {"model": MODEL, "messages": messages, "max_tokens": 1}
        async with desk.served.http.post("/v1/chat/completions", json=chat, headers=OPENAI) as response:
            assert int(response.headers["pcg-prefill-skipped-tokens"]) == sum(first.u) - 1


async def test_case_29_reasoning_left_out_of_the_next_turn() -> None:
    """What was cached up to the user's turn is read, whatever became of the reasoning in the answer."""
    question = say("user", words(100), text("q", CC))
    thought = {"type": "thinking", "thinking": words(60, "t"), "signature": "s"}
    async with opened() as desk:
        first = await desk.ask(question)
        without = await desk.ask(question, say("assistant", "answer"), say("user", text("r", CC)))
        echoed = await desk.ask(question, say("assistant", thought, "answer"), say("user", text("r", CC)))
        assert echoed.read >= without.read == first.written > 100


def test_case_30_generated_text_that_tokenizes_otherwise() -> None:
    """What is compared are token ids: generated ids that the echoed text does not have are not reused, those before are."""
    rig = Rig()
    prompt, split, merged = list(range(100, 120)), [5, 6, 7], [99, 7]
    rig.run(prompt, marked(turn(0)), {turn(0): 20}, output=split)
    plan = marked(turn(1), readable=(turn(1), turn(0)))
    assert rig.run([*prompt, *merged, 1, 2], plan, {turn(0): 20, turn(1): 24}).skipped == 20
    same = rig.run([*prompt, *split, 1, 2], plan, {turn(0): 20, turn(1): 25})
    assert same.skipped >= 23


async def test_case_31_a_late_system_message_stays_in_place() -> None:
    """The conversation before it is read, and its rendering is a prefix of what follows."""
    system, turns = [text(words(300))], [say("user", "u1"), say("assistant", "a1"), say("user", text("u2", CC))]
    late = [say("assistant", "a2"), say("user", "u3"), {"role": "system", "content": "reminder"}]
    async with opened() as desk:
        first = await desk.ask(*turns, system=system)
        told = await desk.ask(*turns, *late, system=system)
        assert told.read == first.written > 300


async def test_case_32_marks_survive_whatever_stands_beside_them() -> None:
    """Odd spacing, key order, unknown fields and members: the mark is seen."""
    body = {"x_future": 1, "messages": [say("user", "hi")], "max_tokens": 1, "model": MODEL, "metadata": {"y": [1]}}
    mark = {"ttl": "5m", "scope": "global", "type": "ephemeral"}
    body["system"] = [{"cache_control": mark, "z": {}, "text": words(100), "type": "text"}]
    async with opened() as desk:
        first = await desk.send(orjson.dumps(body, option=orjson.OPT_INDENT_2))
        assert first.written > 100
        assert (await desk.ask(system=[text(words(100), CC)])).read == first.written


def test_case_35_damaged_kv_is_recomputed() -> None:
    """A flipped byte in a stored block is a miss that is counted and healed, never an answer from garbage."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store, force_store=True)
    tokens, offsets = [*range(100, 122), 1, 2], {SYSTEM: 22, turn(0): 24}
    rig.run(tokens, marked(SYSTEM), offsets)
    for key, found in list(store.scan()):
        payload = store.get_many([key], rig.now_s)[0]
        assert payload is not None
        store.put_many([Item(key, payload[:-1] + bytes([payload[-1] ^ 1]), found.expires_at_s)])
    report = rig.run(tokens, marked(SYSTEM), offsets)
    assert (report.skipped, report.hit) == (0, None)
    assert rig.cache.stats().counters.num_broken_corrupt_tokens > 0
    assert rig.run(tokens, marked(SYSTEM), offsets).hit is not None


async def test_case_36_a_client_that_leaves_mid_stream() -> None:
    """What it used is recorded, what was prefilled is read by the next turn, and nothing is computed for it any more."""
    body = {
        "model": MODEL,
        "max_tokens": 4000,
        "stream": True,
        "system": [text(words(200), CC)],
        "messages": [say("user", "hi")],
    }
    async with opened() as desk:
        async with desk.served.http.post("/v1/messages", json=body, headers=ANTHROPIC) as response:
            await response.content.readuntil(b"text_delta")
        async with asyncio.timeout(10):
            while not desk.served.records:
                await asyncio.sleep(0)
        record = desk.served.records[-1]
        assert record.outcome == "cancelled"
        assert record.bill is not None
        assert record.bill.usage.num_written > 200
        assert 1 <= record.bill.usage.output < 4000
        assert (await desk.ask(system=body["system"])).read == record.bill.usage.num_written


async def test_case_37_an_idle_stream_is_kept_open() -> None:
    """Before the first token bytes go out at intervals, the SDK's order stays intact, and an early error keeps its status."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_started=gate))
    policy = "server: {sse: {keepalive: 20ms, early_headers_after: 20ms}}"
    body = {"model": MODEL, "max_tokens": 1, "stream": True, "messages": [say("user", "hi")]}
    async with serving(backend, policy) as served, served.http.post("/v1/messages", json=body, headers=ANTHROPIC) as response:
        for _ in range(2):
            assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        gate.set()
        rest = (await response.read()).decode()
    names = [line[7:] for line in rest.splitlines() if line.startswith("event: ") and line != "event: ping"]
    assert (names[0], names[-1]) == ("message_start", "message_stop")


async def test_case_41_a_session_resumed_with_another_first_message() -> None:
    """The removed block is named; a mark before it still reads."""
    blocks = [words(100, "b0"), "b1", "b2"]
    whole = say("user", text(blocks[0], CC), blocks[1], text(blocks[2], CC))
    resumed = [say("user", text(blocks[0], CC), text(blocks[2], CC)), say("assistant", "a"), say("user", blocks[1], "go")]
    async with opened() as desk:
        first = await desk.ask(whole)
        told = await desk.ask(*resumed)
        assert 100 < told.read < first.written
        assert told.headers["pcg-miss-reason"].startswith("messages_changed; at=messages/0/1")
    raw = [orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": turns}) for turns in ([whole], resumed)]
    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))
    finding = explain(raw[0], raw[1], make_policy(), renderer, Circumstances())
    assert (finding.cause, str(finding.position)) == ("removed", "messages/0/1")


async def test_case_43_a_pre_warm_call() -> None:
    """`max_tokens: 0` writes and says nothing; with a stream it is refused."""
    system = [text(words(200), CC)]
    async with opened() as desk:
        warm = await desk.ask(say("user", "warmup"), system=system, max_tokens=0)
        assert (warm.body["content"], warm.body["stop_reason"], warm.body["usage"]["output_tokens"]) == ([], "max_tokens", 0)
        assert warm.u[1] > 200
        assert (await desk.ask(say("user", "a real question"), system=system)).read == warm.written
        assert (await desk.ask(system=system, max_tokens=0, stream=True)).error.startswith("stream: ")


async def test_case_47_counting_ignores_the_cache() -> None:
    """The whole prompt, warm or not; and counting refreshes nothing."""
    body: dict[str, Any] = {"system": [text(words(100), CC)]}
    async with opened() as desk:
        first = await desk.ask(**body)
        desk.advance(200)
        assert await desk.count(say("user", "hi"), **body) == sum(first.u)
        desk.advance(101)
        assert (await desk.ask(**body)).read == 0


def test_every_case_of_this_dialect_is_here() -> None:
    """One test for each report that concerns Anthropic's API or the local engine."""
    wanted = [*range(1, 14), *range(15, 22), *range(24, 33), 35, 36, 37, 41, 43, 47]
    named = sorted(int(name.split("_")[2]) for name in globals() if name.startswith("test_case_"))
    assert named == wanted
