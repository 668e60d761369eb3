"""Why one request reads less than another wrote: each cause as a pair of bodies, with its place,
its tokens and its price."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from gateway.cli.main import main
from gateway.cli.why import (
    Circumstances,
    Finding,
    explain,
    finding_json,
    finding_lines,
    model_of,
    wire_of,
)
from gateway.errors import InvalidRequest, UnknownModel
from tests.fakes.tokenizer import ByteTokenizer
from tests.gateway.serving import make_policy

CC = {"type": "ephemeral"}
LONG = "The harbour has twelve berths. " * 8
POLICY = make_policy()


def renderer() -> Renderer:
    tokenizer = ByteTokenizer()
    return Renderer(tokenizer, ChatTemplate.load("chatml", Path(), tokenizer))


def text(value: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": value, **({"cache_control": mark} if mark else {})}


def tool(name: str, mark: Any = None, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": LONG,
        "input_schema": schema or {"type": "object"},
        "cache_control": mark,
    }


def body(*blocks: Any, **changes: Any) -> dict[str, Any]:
    """One turn; texts are blocks, and the last block is marked unless something else is."""
    content = [text(b) if isinstance(b, str) else b for b in blocks or (LONG, "question")]
    fields = {
        "model": "smollm2-135m-instruct",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": content}],
    }
    return fields | changes


def system(*blocks: str, **changes: Any) -> dict[str, Any]:
    """System blocks, the last one marked, and a short question."""
    return body("question", system=[*map(text, blocks[:-1]), text(blocks[-1], CC)], **changes)


def why(before: Any, after: Any, **seen: Any) -> Finding:
    return explain(
        orjson.dumps(before), orjson.dumps(after), POLICY, renderer(), Circumstances(**seen)
    )


IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8h"},
}
UUIDS = ("0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7")
PAIRS: list[tuple[str, str, int, Any, Any]] = [
    (
        "clock",
        "system/0",
        22,
        system(f"Current time is 15:09:20. {LONG}"),
        system(f"Current time is 15:09:34. {LONG}"),
    ),
    (
        "clock",
        "system/0",
        9,
        system(f"Today is Monday. {LONG}"),
        system(f"Today is Friday. {LONG}"),
    ),
    (
        "nonce",
        "system/0",
        8,
        system(f"Session {UUIDS[0]}. {LONG}"),
        system(f"Session {UUIDS[1]}. {LONG}"),
    ),
    ("nonce", "system/0", 4, system(f"cch=fa690; {LONG}"), system(f"cch=0aaa9; {LONG}")),
    ("text", "system/1", 4, system(LONG, "You are kind."), system(LONG, "You help.")),
    ("whitespace", "system/0", len(LONG), system(LONG + "x"), system(LONG + " x")),
    ("unicode", "system/0", 3, system("caf\u00e9" + LONG), system("cafe\u0301" + LONG)),
    ("removed", "messages/0/1", 0, body("a", "b", text(LONG, CC)), body("a", text(LONG, CC))),
    ("inserted", "messages/0/1", 0, body("a", text(LONG, CC)), body("a", "b", text(LONG, CC))),
    (
        "image",
        "messages/0/0",
        1,
        body(IMAGE, text(LONG, CC)),
        body("[Image: source: /tmp/1.png]", text(LONG, CC)),
    ),
    (
        "tool_order",
        "tools/0",
        0,
        body(tools=[tool("a"), tool("b", CC)]),
        body(tools=[tool("b"), tool("a", CC)]),
    ),
    (
        "key_order",
        "tools/0",
        0,
        body(tools=[tool("a", CC, properties={"x": 1, "y": 2})]),
        body(tools=[tool("a", CC, properties={"y": 2, "x": 1})]),
    ),
    ("removed", "tools/1", 0, body(tools=[tool("a"), tool("b", CC)]), body(tools=[tool("a", CC)])),
]


@pytest.mark.parametrize(
    ("kind", "at", "character", "before", "after"), PAIRS, ids=[f"{p[0]}-{p[1]}" for p in PAIRS]
)
def test_differences(kind: str, at: str, character: int, before: Any, after: Any) -> None:
    """The first position that differs, the character in it, and what kind of difference it is."""
    finding = why(before, after)
    assert finding.difference is not None
    assert (finding.cause, str(finding.position)) == (kind, at)
    if kind != "key_order":
        assert finding.difference.character == character
    assert finding.num_missed > 100
    assert finding.usd > 0


def test_circumstances() -> None:
    """What is no difference of the prompts: time, tenant, model, parameters, minimum, marks and
    look-back."""
    warm = system(LONG)
    assert why(warm, warm).cause == "nothing"
    assert why(warm, warm, after_s=299.0).cause == "nothing"
    assert why(warm, warm, after_s=300.0).cause == "expired"
    capped = make_policy("caching: {ttl: {max_age: 200s}}")
    sent = orjson.dumps(warm)
    assert explain(sent, sent, capped, renderer(), Circumstances(after_s=200.0)).cause == "expired"
    assert why(warm, warm, same_tenant=False).cause == "other_tenant"
    assert (
        why(body(text(LONG, CC)), body(text(LONG, CC), tool_choice={"type": "none"})).cause
        == "parameters"
    )
    assert why(system("short"), system("short")).cause == "below_minimum"
    assert why(warm, body("question", system=[text(LONG)])).cause == "not_marked"
    old, late = body(text(LONG, CC)), body(LONG, *["more"] * 20, text("end", CC))
    assert why(old, late).cause == "lookback_exceeded"
    assert why(old, body(LONG, *["more"] * 18, text("end", CC))).cause == "nothing"
    two = make_policy(
        "models: [{name: one, aliases: [claude-one]}, {name: two, aliases: [claude-two]}]"
    )
    pair = [orjson.dumps(warm | {"model": name}) for name in ("claude-one", "claude-two")]
    assert explain(*pair, two, renderer(), Circumstances()).cause == "other_model"  # type: ignore[arg-type,call-arg,misc]


def test_a_conversation_that_went_on_missed_nothing() -> None:
    """A mark that moved to the new last block reads what the old one wrote."""
    turns = [{"role": "user", "content": [text(LONG, CC)]}]
    longer = [
        {"role": "user", "content": [text(LONG)]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [text("q", CC)]},
    ]
    finding = why(body(messages=turns), body(messages=longer))
    assert (finding.cause, finding.num_missed, finding.usd) == ("nothing", 0, Decimal(0))
    assert finding.num_read > len(LONG)


def test_what_it_costs() -> None:
    """Missed tokens are written again at 1.25 of the input price instead of read at 0.1: worked by
    hand."""
    finding = why(system("A" + LONG), system("B" + LONG))
    assert finding.num_read == 0
    assert finding.usd == finding.num_missed * Decimal("1.15") * Decimal("0.000003")
    half = why(system(LONG, "A" + LONG), system(LONG, "B" + LONG))
    assert half.num_read == 0, "only the second block was marked"


def test_openai_reads_any_prefix() -> None:
    """Without markers the common beginning is read, and the difference is what ends it."""

    def chat(*words: str) -> dict[str, Any]:
        return {
            "model": "gpt-4o",
            "messages": [
                {"role": "system", "content": words[0]},
                {"role": "user", "content": words[1]},
            ],
        }

    long = LONG * 6
    finding = why(chat(long, f"At 10:15 {LONG}"), chat(long, f"At 11:15 {LONG}"))
    assert (finding.cause, str(finding.position)) == ("clock", "messages/0/0")
    assert finding.num_read == 1408
    assert why(chat(long, "At noon?"), chat(long, "At noon?")).cause == "nothing"


def test_openais_formats_are_told_apart() -> None:
    """A breakpoint of Chat Completions is seen, and so is a body of Responses, unless part of its
    prompt is elsewhere."""

    def parts(*words: str, kind: str = "input_text") -> list[dict[str, Any]]:
        return [{"type": kind, "text": word} for word in words]

    def chat(*words: str) -> dict[str, Any]:
        content = parts(*words, kind="text")
        content[0] |= {"prompt_cache_breakpoint": {"mode": "explicit"}}
        return {"model": "gpt-5.6", "messages": [{"role": "user", "content": content}]}

    def response(*words: str, **more: Any) -> dict[str, Any]:
        return {
            "model": "gpt-5.6",
            "input": [{"role": "user", "content": word} for word in words],
        } | more

    long = LONG * 6
    assert len(long) < why(chat(long, "What?"), chat(long, "Why?")).num_read < len(long) + 30
    assert len(long) < why(response(long), response(long, "And then?")).num_read < len(long) + 30
    assert why(response(long), response("x" + long)).cause == "text"
    grown = why(
        response(long),
        {"model": "gpt-5.6", "input": [{"role": "user", "content": parts(long, "And?")}]},
    )
    assert (grown.cause, str(grown.position)) == ("boundary_gone", "messages/0/0")
    far = why(response(long), response(long, *["more"] * 21))
    assert (far.cause, str(far.position)) == ("lookback_exceeded", "messages/0/0")
    unmarked = response(long) | {"prompt_cache_options": {"mode": "explicit"}}
    other = {
        "model": "gpt-5.6",
        "messages": [{"role": "user", "content": long}],
        "prompt_cache_options": {"mode": "explicit"},
    }
    assert (why(chat(long), other).cause, why(response(long), unmarked).cause) == (
        "not_marked",
        "not_marked",
    )
    with pytest.raises(InvalidRequest, match="not found"):
        why(response(long), response("x", previous_response_id="resp_1"))


def test_any_prefix_lives_as_long_as_its_last_entry() -> None:
    """A marker keeps what is before it longer than what is not marked, also where reading needs no
    marker."""
    words = [text(LONG * 20, {"type": "ephemeral", "ttl": "1h"}), text("and a question")]
    sent = [orjson.dumps(body(*words, model="gemini-3.8-flash"))] * 2

    def after(seconds: float) -> Finding:
        return explain(*sent, POLICY, renderer(), Circumstances(after_s=seconds))  # type: ignore[call-arg,misc]

    assert after(299.0).cause == "nothing"
    late = after(300.0)
    assert (late.cause, late.position) == ("expired", None)
    assert len(LONG) * 20 < late.num_read < after(299.0).num_read
    assert (after(3600.0).cause, after(3600.0).num_read) == ("expired", 0)


def test_measured_usage_is_what_is_skipped() -> None:
    """Then any prefix counts as read, marked or not, short or not, until it is kept no longer."""
    measured = make_policy("caching: {usage_mode: measured}")

    def told(before: Any, after: Any, **seen: Any) -> Finding:
        return explain(
            orjson.dumps(before), orjson.dumps(after), measured, renderer(), Circumstances(**seen)
        )

    plain = body("question", system=[text(LONG)])
    assert (told(plain, plain).cause, told(plain, plain).num_read) == (
        "nothing",
        told(plain, plain).num_prompt - 1,
    )
    assert (
        told(plain, plain, after_s=300.0).cause,
        told(plain, plain, after_s=300.0).num_read,
    ) == ("expired", 0)
    changed = told(body(LONG, text("At 10:15", CC)), body(LONG, text("At 11:15", CC)))
    assert (changed.cause, str(changed.position)) == ("clock", "messages/0/1")
    assert changed.num_read > len(LONG)
    assert changed.num_missed > 0


def test_wires_and_errors() -> None:
    """The format is told by what only one has; what the gateway would refuse is refused in its
    words."""
    assert wire_of(orjson.dumps(system("x"))) == "anthropic"
    assert wire_of(orjson.dumps({"messages": [{"role": "system", "content": "x"}]})) == "openai"
    assert wire_of(orjson.dumps({"tools": [{"type": "function"}]})) == "openai"
    assert wire_of(b"[]") == "anthropic"
    turn = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    assert wire_of(orjson.dumps({"max_tokens": 1, "messages": [turn]})) == "anthropic"
    assert wire_of(orjson.dumps({"messages": [turn]})) == "openai"
    assert wire_of(orjson.dumps({"messages": [turn], "system": "x"})) == "anthropic"
    assert wire_of(orjson.dumps({"max_tokens": 1, "messages": [turn], "seed": 1})) == "openai"
    marked = {
        "role": "user",
        "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}],
    }
    assert wire_of(orjson.dumps({"max_tokens": 1, "messages": [marked]})) == "openai"
    assert wire_of(orjson.dumps({"input": "x"})) == "responses"
    with pytest.raises(InvalidRequest, match="not JSON"):
        wire_of(b"{")
    with pytest.raises(InvalidRequest):
        why(body(messages=[]), body())
    with pytest.raises(UnknownModel):
        model_of(orjson.dumps(body(model="llama")), POLICY)


def test_what_is_printed() -> None:
    """People see the text around the difference, machines see none."""
    finding = why(*PAIRS[0][3:])
    lines = finding_lines(finding)
    assert lines[0].startswith("clock: clock-like text")
    assert lines[1] == "at system/0, character 22"
    assert "15:09:20" in lines[2]
    assert "15:09:34" in lines[3]
    told = finding_json(finding)
    assert (told["cause"], told["at"], told["character"]) == ("clock", "system/0", 22)
    assert "15:09" not in json.dumps(told)


@pytest.mark.engine
def test_the_command(
    default_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pcg why A.json B.json` with the real tokenizer, and its exit for a body that is none."""
    for name, pair in (("a", PAIRS[0][3]), ("b", PAIRS[0][4]), ("c", {})):
        (tmp_path / f"{name}.json").write_bytes(orjson.dumps(pair))
    with pytest.raises(SystemExit) as ended:
        main(["why", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json"])
    assert ended.value.code in (0, None)
    told = json.loads(capsys.readouterr().out)
    assert (told["cause"], told["at"], told["character"]) == ("clock", "system/0", 22)
    assert 50 < told["missed_tokens"] < 200
    with pytest.raises(SystemExit) as ended:
        main(["why", str(tmp_path / "a.json"), str(tmp_path / "c.json")])
    assert ended.value.code == 1
