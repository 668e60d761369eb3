"""Marks checked and mended, the automatic mark placed, the billing nonce dropped:
through real bodies.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from engine.prompt.types import TextPart
from gateway.dialects.places import marks_of
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Wire
from gateway.wire.openai import CHAT_WIRE
from policies.rules import DialectRules
from policies.sections import NormalizePolicy
from tests.fakes import dialects
from tests.fakes.rules import ANTHROPIC, OPENAI, rules

CC: dict[str, Any] = {"type": "ephemeral"}
CC1H: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}
REPAIR = rules(ANTHROPIC, marker_errors="repair")


def text(value: str = "x", mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": mark}


def tool(name: str, mark: Any = None) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, "cache_control": mark}


def parsed(*blocks: Any, **fields: Any) -> Request:
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": list(blocks) or "q"}],
    } | fields
    return MESSAGES_WIRE.parse(orjson.dumps(body), {}, request_id="r")


def refused(request: Request, base: DialectRules = ANTHROPIC) -> str:
    """The text of the 400."""
    with pytest.raises(InvalidRequest) as caught:
        dialects.normalize(request, base)
    reply = MESSAGES_WIRE.encode_error(caught.value, request_id="r")
    return str(orjson.loads(reply.body)["error"]["message"])


def marked(request: Request) -> dict[str, float]:
    return {str(position): ttl_s for position, ttl_s in marks_of(request.prompt).items()}


def repaired(request: Request) -> tuple[dict[str, float], tuple[str, ...]]:
    mended = dialects.normalize(request, REPAIR)
    return marked(mended), mended.warnings


def test_what_keeps_the_rules_is_left_alone() -> None:
    """Four marks, TTLs that do not increase: the same prompt, no warning."""
    request = parsed(
        text(), text("y", CC), text("z", CC), tools=[tool("t", CC1H)], system=[text("s", CC1H)]
    )
    normal = dialects.normalize(request, ANTHROPIC)
    assert (normal.prompt, normal.warnings) == (request.prompt, ())


# Too many -----------------------------------------------------------------------------------------


def test_five_marks() -> None:
    """Counted over tools, system and messages."""
    request = parsed(
        text("a", CC), text("b", CC), text("c", CC), tools=[tool("t", CC)], system=[text("s", CC)]
    )
    assert refused(request) == "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert repaired(request) == (
        dict.fromkeys(["tools/0", "system/0", "messages/0/1", "messages/0/2"], 300.0),
        ("cache_control-dropped",),
    )


def test_automatic_takes_a_slot() -> None:
    """Four marks and the automatic one are five; three and it are four."""
    four, three = (
        [text("a", CC), text("b", CC), text("c", CC), text("d", CC)],
        [text("a", CC), text("b", CC), text("c", CC)],
    )
    assert refused(parsed(*four, text("e"), cache_control=CC)).endswith("Found 5.")
    normal = dialects.normalize(parsed(*three, text("e"), cache_control=CC), ANTHROPIC)
    assert marked(normal) == dict.fromkeys([f"messages/0/{i}" for i in range(4)], 300.0)
    assert normal.automatic is None


def test_two_marks_in_one_tool_result_are_one() -> None:
    """What is limited is breakpoints, and these are one."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("a", CC), text("b", CC)]}
    request = parsed(result, text("b", CC), text("c", CC), text("d", CC))
    assert len(marked(dialects.normalize(request, ANTHROPIC))) == 4


# Order of TTLs ------------------------------------------------------------------------------------


ORDER = (
    "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that "
    "blocks are processed in the "
    "following order: `tools`, `system`, `messages`."
)


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (parsed(tools=[tool("t", CC)], system=[text("s", CC1H)]), "system.0.cache_control.ttl"),
        (parsed(text("a", CC), text("b", CC1H)), "messages.0.content.1.cache_control.ttl"),
        (
            parsed(system=[text("s", CC)], tools=[tool("t"), tool("u", CC1H)], cache_control=CC1H),
            "cache_control.ttl",
        ),
    ],
)
def test_ttls_do_not_increase(request_: Request, path: str) -> None:
    """The block that asks for longer than one before it is named, in the order of the prompt."""
    assert refused(request_) == f"{path}: {ORDER}"


def test_longer_ttl_is_cut_in_repair() -> None:
    """The later mark gets the shorter TTL."""
    assert repaired(parsed(tools=[tool("t", CC)], system=[text("s", CC1H)])) == (
        {"tools/0": 300.0, "system/0": 300.0},
        ("cache_control-ttl-downgraded",),
    )


def test_one_hour_before_five_minutes_is_fine() -> None:
    """The other way round nothing is wrong."""
    dialects.normalize(parsed(tools=[tool("t", CC1H)], system=[text("s", CC)]), ANTHROPIC)


# Where none may stand -----------------------------------------------------------------------------


def test_mark_on_empty_text() -> None:
    """Strict: the path ends at the text. Repair: the mark moves to the nearest earlier place that
    can bear it."""
    request = parsed(text("a"), text("", CC))
    assert (
        refused(request)
        == "messages.0.content.1.text: cache_control cannot be set for empty text blocks"
    )
    assert repaired(request) == ({"messages/0/0": 300.0}, ("cache_control-moved",))
    assert repaired(parsed(text("", CC))) == ({}, ("cache_control-moved",))


def test_mark_on_empty_text_inside_a_tool_result() -> None:
    """The inner path; in repair the whole result bears the mark."""
    request = parsed({"type": "tool_result", "tool_use_id": "t", "content": [text("", CC)]})
    path = "messages.0.content.0.tool_result.content.0.text"
    assert refused(request) == f"{path}: cache_control cannot be set for empty text blocks"
    assert repaired(request) == ({"messages/0/0": 300.0}, ("cache_control-moved",))


def test_mark_on_thinking() -> None:
    """Strict: extra input. Repair: gone, and the signature is untouched."""
    thinking = {"type": "thinking", "thinking": "t", "signature": "sig", "cache_control": CC}
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [thinking, text("a")]},
        ],
    }
    request = MESSAGES_WIRE.parse(orjson.dumps(body), {}, request_id="r")
    message = "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"
    assert refused(request) == message
    assert refused(request, rules(OPENAI)) == message
    assert repaired(request) == ({}, ("cache_control-removed-from-thinking",))


# The automatic mark -------------------------------------------------------------------------------


def test_automatic_walks_back_over_what_cannot_bear_it() -> None:
    """Silently: an empty text at the end is no error here."""
    normal = dialects.normalize(parsed(text("a"), text(""), cache_control=CC1H), ANTHROPIC)
    assert (marked(normal), normal.warnings) == ({"messages/0/0": 3600.0}, ())


def test_automatic_on_a_marked_block() -> None:
    """The same TTL is one mark; another is an error, or in repair the block's own."""
    assert marked(dialects.normalize(parsed(text("a", CC), cache_control=CC), ANTHROPIC)) == {
        "messages/0/0": 300.0
    }
    clash = parsed(text("a", CC1H), cache_control=CC)
    assert refused(clash).startswith("cache_control.ttl: ")
    assert repaired(clash) == ({"messages/0/0": 3600.0}, ("cache_control-automatic-dropped",))


def test_automatic_with_nothing_to_mark() -> None:
    """No place can bear a mark: caching is skipped silently."""
    assert marked(dialects.normalize(parsed(text(""), cache_control=CC), ANTHROPIC)) == {}


def test_automatic_for_another_providers_model() -> None:
    """It is one more mark, and never a reason to fail."""
    normal = dialects.normalize(parsed(text("a"), text("b", CC1H), cache_control=CC), OPENAI)
    assert (marked(normal), normal.automatic) == ({"messages/0/1": 3600.0}, None)


def test_openai_bodies_under_anthropics_rules() -> None:
    """Aggregators' marks obey the same limits; the path stays where it is known."""
    parts = [{"type": "text", "text": "x", "cache_control": CC} for _ in range(5)]
    body = {"model": "claude-x", "messages": [{"role": "user", "content": parts}]}
    request = CHAT_WIRE.parse(orjson.dumps(body), {}, request_id="r")
    assert refused(request) == "A maximum of 4 blocks with cache_control may be provided. Found 5."


# The billing nonce --------------------------------------------------------------------------------


NONCE = "x-anthropic-billing-header: cc_version=2.1.0.{}; cc_entrypoint=cli; cch={};"


def test_requests_that_differ_in_the_nonce_are_one_prompt() -> None:
    """Only a first system block that is nothing else is dropped."""
    first, second = (
        dialects.normalize(parsed(system=[text(NONCE.format(*nonce)), text("s", CC)]), ANTHROPIC)
        for nonce in (("a1b", "fa690"), ("c2d", "0aaa9"))
    )
    assert first.prompt == second.prompt
    assert marked(first) == {"system/0": 300.0}


@pytest.mark.parametrize(
    "system",
    [
        [text("please explain x-anthropic-billing-header")],
        [text(NONCE.format("a1b", "fa690") + " and more text")],
        [text("s"), text(NONCE.format("a1b", "fa690"))],
    ],
)
def test_text_that_mentions_the_nonce_stays(system: list[Any]) -> None:
    """Anything but a full match in first place reaches the model unchanged."""
    request = parsed(system=system)
    assert dialects.normalize(request, ANTHROPIC).prompt == request.prompt


GOES_ON = NONCE + "\n\nYou are a helper.\n"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"system": GOES_ON}, "system/0"),
        ({"system": [text(GOES_ON, CC), text("s")]}, "system/0"),
        ({"messages": [{"role": "user", "content": GOES_ON}]}, "messages/0/0"),
        ({"messages": [{"role": "user", "content": [text(GOES_ON, CC)]}]}, "messages/0/0"),
        ({"system": GOES_ON.replace("\n\nYou", "\r\n\nYou")}, "system/0"),
    ],
)
@pytest.mark.parametrize("wire", [MESSAGES_WIRE, CHAT_WIRE], ids=["messages", "chat"])
def test_a_first_line_of_nonce_is_dropped_alone(
    wire: Wire, fields: dict[str, Any], place: str
) -> None:
    """The text goes on as it was, its mark and its place stay."""
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "q"}]} | fields
    if wire is CHAT_WIRE and "system" in body:
        system = {"role": "system", "content": body.pop("system")}
        body["messages"] = [system, *body["messages"]]
    first, second = (
        wire.parse(orjson.dumps(body).replace(b"{}", nonce), {}, request_id="r")
        for nonce in (b"a1b", b"0aaa9")
    )
    base = OPENAI if wire is CHAT_WIRE else ANTHROPIC
    shorter = dialects.normalize(first, base)
    assert shorter.prompt == dialects.normalize(second, base).prompt
    assert shorter.warnings == ("billing-nonce-dropped",)
    texts = {
        str(at): part.text for at, part in shorter.prompt.parts() if isinstance(part, TextPart)
    }
    assert texts[place] == "\nYou are a helper.\n"
    assert marks_of(first.prompt).keys() <= marks_of(shorter.prompt).keys()


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "A header follows.\n" + GOES_ON},
        {"system": NONCE.replace(";", " ") + "\ntext"},
        {"system": "s", "messages": [{"role": "user", "content": GOES_ON}]},
        {"messages": [{"role": "user", "content": NONCE}]},
    ],
)
def test_a_nonce_elsewhere_stays(fields: dict[str, Any]) -> None:
    """Behind other text, in another form, in a later message, or as all that is said."""
    request = parsed(**fields)
    assert dialects.normalize(request, ANTHROPIC).prompt == request.prompt


def test_the_nonce_stays_where_the_policy_says_so() -> None:
    """`normalize.billing_nonce: keep`."""
    request = parsed(system=[text(NONCE.format("a1b", "fa690"))])
    assert (
        dialects.normalize(
            request, rules(ANTHROPIC, normalize=NormalizePolicy(billing_nonce="keep"))
        ).prompt
        == request.prompt
    )


def test_a_path_counts_the_nonce() -> None:
    """Errors speak of the client's own blocks, the dropped one included."""
    request = parsed(
        system=[text(NONCE.format("a1b", "fa690")), text("s", CC)],
        tools=[tool("t")],
        cache_control=CC1H,
    )
    assert refused(request).startswith("cache_control.ttl: ")
    early = parsed(system=[text(NONCE.format("a1b", "fa690")), text("s", CC), text("t", CC1H)])
    assert refused(early).startswith("system.2.cache_control.ttl: ")
