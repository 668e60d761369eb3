"""What users ran into with cache marks: where they may stand, how many, in which order,
and what they are worth.

The numbers are those of a collection of public bug reports.
"""

from __future__ import annotations

from typing import Any

import orjson

from tests.fakes.engine_backend import EngineBackend
from tests.fakes.reports import CC, CC1H, MODEL, REPAIR, Desk, call, opened, say, text, tool, words
from tests.gateway.serving import make_policy, serving


async def test_case_06_a_mark_on_an_empty_text_block() -> None:
    """Strict is the API's 400 with its path; repaired, the mark moves; automatic caching walks
    back."""
    empty = say("user", words(100), text("", CC))
    async with opened() as desk:
        told = await desk.ask(empty)
        assert (
            told.error
            == "messages.0.content.1.text: cache_control cannot be set for empty text blocks"
        )
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
        }
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
    turns = [
        say("user", "q"),
        say("assistant", thought | {"cache_control": CC}, "hello"),
        say("user", "r"),
    ]
    async with opened() as desk:
        told = await desk.ask(*turns)
        assert (
            told.error
            == "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"
        )
    async with opened(REPAIR) as desk:
        told = await desk.ask(*turns)
        assert told.headers["pcg-warning"] == "cache_control-removed-from-thinking"
        assert await desk.count(
            say("user", "q"), say("assistant", thought, "hello"), say("user", "r")
        ) == sum(told.u)


async def test_case_08_more_than_four_breakpoints() -> None:
    """The right number in the 400, the automatic one counted; repaired, anchors and the latest
    stay."""
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
    """The 400 names the block that comes too late; in the right order each class is billed its own
    stretch."""
    async with opened() as desk:
        told = await desk.ask(tools=[tool("a", CC)], system=[text(words(100), CC1H)])
        assert told.error.startswith(
            "system.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a "
            "ttl='5m'"
        )
        told = await desk.ask(tools=[tool("a", CC1H)], system=[text(words(100), CC)])
        assert told.u[0] == 0
        assert min(told.u[1], told.u[2]) >= 100
    async with opened(REPAIR) as desk:
        told = await desk.ask(tools=[tool("a", CC)], system=[text(words(100), CC1H)])
        assert told.headers["pcg-warning"] == "cache_control-ttl-downgraded"


async def test_case_10_the_look_back_window() -> None:
    """Blocks 10, 15 and 35 of the vendor's example: 10 is read from 15; from 35 nothing is; marked
    at 15 and 35, 15 is."""

    def blocks(num: int, *marks: int) -> dict[str, Any]:
        return say(
            "user",
            *(text(words(20, f"b{i}x"), CC if i in marks else None) for i in range(1, num + 1)),
        )

    async with opened() as desk:
        first = await desk.ask(blocks(10, 10))
        second = await desk.ask(blocks(15, 15))
        assert second.read == first.written
        told = await desk.ask(blocks(35, 15, 35))
        assert told.read == second.read + second.written
    async with opened() as desk:
        await desk.ask(blocks(15, 15))
        assert (await desk.ask(blocks(35, 35))).read == 0


async def test_case_16_tool_choice_toggled() -> None:
    """Tools and system stay readable, the messages are written again; back again, everything is
    read."""
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
    """The default in words is the default; another effort is another entry, and going back reads
    the first."""
    turns = [say("user", text(words(100), CC), "q")]
    async with opened() as desk:
        first = await desk.ask(*turns)
        assert (await desk.ask(*turns, output_config={"effort": "high"})).read == first.written
        assert (await desk.ask(*turns, output_config={"effort": "low"})).read == 0
        assert (await desk.ask(*turns)).read == first.written


async def test_case_18_the_model_switched() -> None:
    """An alias of the same model reads; another model has a cache of its own, and the diagnosis
    says so first."""
    policy = "models: [{name: m1, aliases: [m1-fast]}, {name: m2, aliases: [m2-fast]}]"
    body: dict[str, Any] = {
        "system": [text(words(100), CC)],
        "diagnostics": {"previous_message_id": None},
    }
    async with EngineBackend("m1") as one, EngineBackend("m2") as two:
        effective = make_policy(policy)
        assert [model.name for model in effective.models] == ["m1", "m2"]
        async with serving(one, policy) as served:
            desk = Desk(served, one)
            first = await desk.ask(**body, model="m1")
            assert (await desk.ask(**body, model="m1-fast")).read == first.written > 100
            found = await desk.ask(
                **body | {"model": "m2", "diagnostics": {"previous_message_id": first.body["id"]}}
            )
            assert found.body["diagnostics"]["cache_miss_reason"]["type"] == "model_changed"
        async with serving(two, policy) as served:
            assert (await Desk(served, two).ask(**body, model="m2")).read == 0


async def test_case_19_below_the_minimum() -> None:
    """63 tokens are too few and say so, 64 are enough; of two marks only the long enough one
    writes."""
    async with opened() as desk:
        head = await desk.count(say("user", "x"), system=[text("y")]) - await desk.count(
            say("user", "x")
        )
        probe = await desk.ask(say("user", "x"), system=[text(words(200), CC)])
        around = probe.written - 200
        assert head > 0
        short, enough = [
            await desk.ask(say("user", "x"), system=[text(words(num - around, f"s{num}"), CC)])
            for num in (63, 64)
        ]
        assert (short.u[:3], short.headers["pcg-cache"]) == ((0, 0, 0), "below-min")
        assert enough.u[:2] == (0, 64)
        two = await desk.ask(
            say("user", "x"), system=[text(words(20, "p"), CC), text(words(80, "q"), CC)]
        )
        assert two.written > 100


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


async def test_case_32_marks_survive_whatever_stands_beside_them() -> None:
    """Odd spacing, key order, unknown fields and members: the mark is seen."""
    body = {
        "x_future": 1,
        "messages": [say("user", "hi")],
        "max_tokens": 1,
        "model": MODEL,
        "metadata": {"y": [1]},
    }
    mark = {"ttl": "5m", "scope": "global", "type": "ephemeral"}
    body["system"] = [{"cache_control": mark, "z": {}, "text": words(100), "type": "text"}]
    async with opened() as desk:
        first = await desk.send(orjson.dumps(body, option=orjson.OPT_INDENT_2))
        assert first.written > 100
        assert (await desk.ask(system=[text(words(100), CC)])).read == first.written
