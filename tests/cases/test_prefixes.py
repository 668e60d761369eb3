"""What users ran into where a prompt did not stay what it was: clocks, nonces, orders, spellings,
templates, sessions.

The numbers are those of a collection of public bug reports.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import orjson

from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from gateway.cli.why import Circumstances, explain
from gateway.wire.anthropic import MESSAGES_WIRE
from tests.fakes.reports import CC, MODEL, Desk, Told, call, opened, say, text, tool, words
from tests.fakes.rig import Rig, marked, turn
from tests.fakes.tokenizer import ByteTokenizer
from tests.gateway.serving import OPENAI, make_policy


async def test_case_01_clock_text_at_the_head() -> None:
    """A miss, and it says where; `why` says what. With the clock behind the mark it is read."""
    async with opened() as desk:
        bodies = [
            {"system": [text(f"Current time is 15:09:{s}. {words(200)}", CC)]} for s in (20, 34)
        ]
        first, second = [await desk.ask(**body) for body in bodies]
        assert (first.read, second.read) == (0, 0)
        assert second.u[1] == first.u[1] > 200
        assert second.headers["pcg-miss-reason"].startswith("system_changed; at=system/0; token=")
        for seconds in (20, 34):
            told = await desk.ask(
                say("user", f"It is 15:09:{seconds}. hi"), system=[text(words(200), CC)]
            )
        assert told.read > 200
    raw = [
        orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": [say("user", "hi")]} | body)
        for body in bodies
    ]
    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))
    finding = explain(raw[0], raw[1], make_policy(), renderer, Circumstances())
    assert finding.difference is not None
    assert (finding.cause, str(finding.position), finding.difference.character) == (
        "clock",
        "system/0",
        22,
    )


async def test_case_02_a_nonce_as_first_system_block() -> None:
    """It is dropped, and counted; text that only mentions it reaches the model unchanged."""

    def body(nonce: str) -> dict[str, Any]:
        header = (
            f"x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch={nonce};"
        )
        return {"system": [text(header), text(words(150, "a"), CC), text(words(150, "b"), CC)]}

    async with opened() as desk:
        first, second = [await desk.ask(**body(nonce)) for nonce in ("fa690", "0aaa9")]
        assert second.read == first.written > 300
        assert "billing-nonce-dropped" in second.headers["pcg-warning"]
        async with desk.served.http.get("/metrics") as response:
            assert (
                'pcg_changed_requests_total{warning="billing-nonce-dropped"} 2.0'
                in await response.text()
            )
        control = "please explain x-anthropic-billing-header"
        plain = await desk.count(say("user", "hi"), system=[text("y")])
        assert await desk.count(say("user", "hi"), system=[text(control), text("y")]) > plain + len(
            control
        )


async def test_case_03_tool_order_changes() -> None:
    """Preserved, another order is a miss from the first tool on; ordered by name it is the same
    prompt."""
    orders = (("zeta", "alpha", "mu"), ("alpha", "mu", "zeta"))

    async def ask(desk: Desk) -> list[Told]:
        return [
            await desk.ask(tools=[*map(tool, names[:-1]), tool(names[-1], CC)]) for names in orders
        ]

    async with opened() as desk:
        first, second = await ask(desk)
        assert second.read == 0
        assert second.headers["pcg-miss-reason"].startswith("tools_changed; at=tools/0")
    async with opened("caching: {normalize: {tool_order: by_name}}") as desk:
        first, second = await ask(desk)
        assert second.read == first.written > 120


async def test_case_04_json_key_order() -> None:
    """Preserved, another order of keys is another prompt; sorted it is the same, but for arrays
    that mean their order."""

    def body(properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "tools": [tool("find", CC, input_schema={"type": "object", "properties": properties})]
        }

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
    """An escaped character is the character; another Unicode form or one more space is another
    text."""
    composed = words(100) + "caf\u00e9"
    decomposed = unicodedata.normalize("NFD", composed)

    def body(system: str) -> dict[str, Any]:
        return {
            "model": MODEL,
            "max_tokens": 1,
            "system": [text(system, CC)],
            "messages": [say("user", "hi")],
        }

    async with opened() as desk:
        literal = orjson.dumps(body(composed))
        first = await desk.send(literal.replace("\u00e9".encode(), b"\\u00e9"))
        assert (await desk.send(literal)).read == first.written > 100
        for changed in (decomposed, composed + " "):
            told = await desk.send(orjson.dumps(body(changed)))
            assert told.read == 0
            assert "at=system/0" in told.headers["pcg-miss-reason"]


async def test_case_15_an_image_becomes_text() -> None:
    """The miss begins at that message and is named; the same image with other line breaks is the
    same image."""
    wire = MESSAGES_WIRE

    def body(block: Any) -> bytes:
        turns = [
            say("user", block, "look"),
            say("assistant", words(100)),
            say("user", text("next", CC)),
        ]
        return orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": turns})

    def image(data: str) -> dict[str, Any]:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": data},
        }

    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))
    pointer = text("[Image: source: /tmp/1.png]")
    finding = explain(
        body(image("aGVsbG8h")), body(pointer), make_policy(), renderer, Circumstances()
    )
    assert (finding.cause, str(finding.position), finding.num_read) == ("image", "messages/0/0", 0)
    prompts = [
        wire.parse(body(image(data)), {}, request_id="r").prompt
        for data in ("aGVsbG8h", "aGVs\nbG8h")
    ]
    assert prompts[0] == prompts[1]


async def test_case_25_a_compaction_request() -> None:
    """Without the tools it shares nothing, and says so; with the instruction appended it reads the
    whole conversation."""
    body: dict[str, Any] = {"tools": [tool("find", CC)], "system": [text(words(100), CC)]}
    turns = [say("user", "a"), say("assistant", "b"), say("user", text(words(100, "m"), CC))]
    async with opened() as desk:
        first = await desk.ask(*turns, **body)
        bare = await desk.ask(*turns, **body | {"tools": []})
        assert bare.read == 0
        assert bare.headers["pcg-miss-reason"].split(";")[0] in (
            "tools_changed",
            "system_changed",
            "cold",
        )
        told = await desk.ask(*turns, say("user", "summarise"), **body)
        assert told.read == first.written


async def test_case_26_a_tool_list_that_changes_and_changes_back() -> None:
    """The earlier list's entry is still there; a deferred tool found later leaves the head as it
    was."""
    system = [text(words(50), CC)]
    two, three = [tool("a"), tool("b", CC)], [tool("a"), tool("b"), tool("c", CC)]
    async with opened() as desk:
        first = await desk.ask(tools=two, system=system)
        assert (await desk.ask(tools=three, system=system)).read < first.written
        assert (await desk.ask(tools=two, system=system)).read == first.written
        deferred = [*two, tool("late", defer_loading=True)]
        assert (await desk.ask(tools=deferred, system=system)).read == first.written
        found = {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": [{"type": "tool_reference", "tool_name": "late"}],
        }
        turns = [say("user", "hi"), say("assistant", call()), say("user", found)]
        told = await desk.ask(*turns, tools=deferred, system=system)
        assert told.read == first.written
        assert await desk.count(*turns, tools=deferred, system=system) > sum(first.u) + 40


async def test_case_27_a_template_that_prints_the_date() -> None:
    """Frozen, midnight changes no prompt; told the day, it changes all of them and says so,
    once."""
    source = (
        "Today is {{ strftime_now('%d %b %Y') }}. {% for m in messages %}{{ m.content }}{% "
        "endfor %}"
    )
    frozen, daily, off = (
        ChatTemplate(source, name="t", tokens={}, clock=clock)
        for clock in ("frozen", "utc_day", "off")
    )
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
    """The template's beginning-of-text token stands once; the same dialogue through both APIs is
    one prefix."""
    tokenizer = ByteTokenizer(
        special=("<s>", "</s>"), template_tokens={"bos_token": "<s>"}, stops=("</s>",)
    )
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    wire = MESSAGES_WIRE
    body = orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": [say("user", "hello")]})
    prompt = wire.parse(body, {}, request_id="r").prompt
    rendered = Renderer(
        tokenizer, ChatTemplate(source, name="t", tokens=tokenizer.template_tokens)
    ).render(prompt)
    assert rendered.token_ids.count(tokenizer.special_tokens["<s>"]) == 1
    assert rendered.token_ids[0] == tokenizer.special_tokens["<s>"]
    async with opened() as desk:
        first = await desk.ask(say("user", "hello"), system=words(200))
        messages = [{"role": "system", "content": words(200)}, {"role": "user", "content": "hello"}]
        chat = {"model": MODEL, "messages": messages, "max_tokens": 1}
        async with desk.served.http.post(
            "/v1/chat/completions", json=chat, headers=OPENAI
        ) as response:
            assert int(response.headers["pcg-prefill-skipped-tokens"]) == sum(first.u) - 1


async def test_case_29_reasoning_left_out_of_the_next_turn() -> None:
    """What was cached up to the user's turn is read, whatever became of the reasoning in the
    answer."""
    question = say("user", words(100), text("q", CC))
    thought = {"type": "thinking", "thinking": words(60, "t"), "signature": "s"}
    async with opened() as desk:
        first = await desk.ask(question)
        without = await desk.ask(question, say("assistant", "answer"), say("user", text("r", CC)))
        echoed = await desk.ask(
            question, say("assistant", thought, "answer"), say("user", text("r", CC))
        )
        assert echoed.read >= without.read == first.written > 100


def test_case_30_generated_text_that_tokenizes_otherwise() -> None:
    """What is compared are token ids: generated ids that the echoed text does not have are not
    reused, those before are."""
    rig = Rig()
    prompt, split, merged = list(range(100, 120)), [5, 6, 7], [99, 7]
    rig.run(prompt, marked(turn(0)), {turn(0): 20}, output=split)
    plan = marked(turn(1), readable=(turn(1), turn(0)))
    assert rig.run([*prompt, *merged, 1, 2], plan, {turn(0): 20, turn(1): 24}).skipped == 20
    same = rig.run([*prompt, *split, 1, 2], plan, {turn(0): 20, turn(1): 25})
    assert same.skipped >= 23


async def test_case_31_a_late_system_message_stays_in_place() -> None:
    """The conversation before it is read, and its rendering is a prefix of what follows."""
    system, turns = (
        [text(words(300))],
        [say("user", "u1"), say("assistant", "a1"), say("user", text("u2", CC))],
    )
    late = [say("assistant", "a2"), say("user", "u3"), {"role": "system", "content": "reminder"}]
    async with opened() as desk:
        first = await desk.ask(*turns, system=system)
        told = await desk.ask(*turns, *late, system=system)
        assert told.read == first.written > 300


async def test_case_41_a_session_resumed_with_another_first_message() -> None:
    """The removed block is named; a mark before it still reads."""
    blocks = [words(100, "b0"), "b1", "b2"]
    whole = say("user", text(blocks[0], CC), blocks[1], text(blocks[2], CC))
    resumed = [
        say("user", text(blocks[0], CC), text(blocks[2], CC)),
        say("assistant", "a"),
        say("user", blocks[1], "go"),
    ]
    async with opened() as desk:
        first = await desk.ask(whole)
        told = await desk.ask(*resumed)
        assert 100 < told.read < first.written
        assert told.headers["pcg-miss-reason"].startswith("messages_changed; at=messages/0/1")
    raw = [
        orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": turns})
        for turns in ([whole], resumed)
    ]
    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))
    finding = explain(raw[0], raw[1], make_policy(), renderer, Circumstances())
    assert (finding.cause, str(finding.position)) == ("removed", "messages/0/1")
