"""Recorded traffic of Anthropic's API: its requests are understood, our answers have its fields,
its charges are ours."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from gateway.calls.catalog import ModelCatalog
from gateway.errors import InvalidRequest, UnknownModel
from gateway.request import Request
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.base import Answer, ToolCall
from policies.pricing import Usage, charge
from tests.fakes import dialects
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import make_policy

DATA: Final = Path(__file__).parents[1] / "data" / "anthropic-cassettes" / "interactions.jsonl.gz"
WIRE: Final = MESSAGES_WIRE
ALIASES: Final = (
    "['claude-[0-9]*', 'claude-opus-*', 'claude-sonnet-*', 'claude-haiku-*', 'claude-fable-*']"
)
POLICY: Final = make_policy(f"models: [{{name: smollm2-135m-instruct, aliases: {ALIASES}}}]")

BETA_FIELDS: Final = {"context_management", "usage.iterations", "usage.pydantic_ai_gateway"}
"""Fields of answers to requests for features that are not here, and of a gateway in between."""

SERVED_BY_TOOLS: Final = {"container", "usage.server_tool_use", "usage.inference_geo"}
"""Fields that hold something where the provider's own tools or regions served the request, and are
null here."""


def recorded() -> list[dict[str, Any]]:
    """Every interaction."""
    return [json.loads(line) for line in gzip.open(DATA, "rt", encoding="utf-8")]


ROWS: Final = recorded()


def parsed(row: dict[str, Any], **changes: Any) -> Request:
    parse = WIRE.parse_count if row["api"] == "count_tokens" else WIRE.parse
    headers = {name: ", ".join(values) for name, values in row["headers"].items()}
    return parse(orjson.dumps(row["request"] | changes), headers, request_id="req_1")


def test_recorded_requests_are_understood() -> None:
    """Each parses, with marks that keep the rules; what a text model cannot see is told by path and
    nothing else is refused."""
    num_unseen = 0
    for row in ROWS:
        request = parsed(row)
        rules = POLICY.rules_for(request.model, "anthropic")
        if not request.unseen:
            dialects.plan(dialects.normalize(request, rules), rules)
            continue
        num_unseen += 1
        with pytest.raises(InvalidRequest, match="not supported by this model") as caught:
            dialects.normalize(request, rules)
        assert caught.value.path == request.unseen[0].path
    assert len(ROWS) == 356
    assert num_unseen < 100


def test_recorded_errors_of_unknown_models() -> None:
    """The provider's 404s, word for word, and behind them the ids that are served here."""
    catalog = ModelCatalog(POLICY, {"smollm2-135m-instruct": ScriptedBackend()})
    rows = [row for row in ROWS if row["status"] == 404]
    assert len(rows) == 2
    for row in rows:
        with pytest.raises(UnknownModel) as caught:
            catalog.find(parsed(row).model)
        body = orjson.loads(
            WIRE.encode_error(caught.value, request_id=row["response"]["request_id"]).body
        )
        message, served = body["error"]["message"].split(". Served here: ")
        assert served == "smollm2-135m-instruct" or served.startswith("smollm2-135m-instruct, ")
        body["error"]["message"] = message
        assert body == row["response"]


def test_the_recorded_error_of_an_unsupported_effort() -> None:
    """The provider's 400 of a model without that level, word for word, by the shipped policy."""
    (row,) = [row for row in ROWS if row["status"] == 400]
    request = parsed(row)
    with pytest.raises(InvalidRequest) as caught:
        dialects.check_abilities(request, POLICY.rules_for(request.model, "anthropic"))
    body = orjson.loads(
        WIRE.encode_error(caught.value, request_id=row["response"]["request_id"]).body
    )
    assert body == row["response"]
    for row in ROWS:
        if row["status"] == 200:
            request = parsed(row)
            dialects.check_abilities(request, POLICY.rules_for(request.model, "anthropic"))


def an_answer() -> Answer:
    calls = (ToolCall("find", '{"q": "x"}'),)
    return Answer(
        "text",
        "stop",
        None,
        Usage(5, 3, ((300.0, 2),), 7),
        thinking="hm",
        calls=calls,
        num_thinking=2,
    )


def fields(value: Any, prefix: str = "") -> dict[str, str]:
    """Dotted names and JSON types of an object, lists left closed."""
    found = {}
    for key, inner in value.items():
        found[f"{prefix}{key}"] = type(inner).__name__
        if isinstance(inner, dict):
            found |= fields(inner, f"{prefix}{key}.")
    return found


def check_fields(theirs: dict[str, str], ours: dict[str, str], ignored: set[str]) -> None:
    """We have each of their fields; of the same type, where both say something."""
    for name, kind in theirs.items():
        if any(name == field or name.startswith(f"{field}.") for field in ignored):
            continue
        assert name in ours, name
        if "NoneType" not in (kind, ours[name]):
            assert ours[name] == kind, name


def test_our_answers_have_the_recorded_fields() -> None:
    """Message, usage and the blocks that a text model writes."""
    ours = orjson.loads(
        WIRE.encode_answer(
            parsed(ROWS[0], thinking={"type": "adaptive"}), an_answer(), created_at_s=0
        )
    )
    blocks = {block["type"]: block for block in ours["content"]}
    known = fields({name: value for name, value in ours.items() if name != "content"})
    nulls = {name for name in SERVED_BY_TOOLS if known[name] == "NoneType"}
    assert nulls == SERVED_BY_TOOLS
    num_messages = 0
    for row in ROWS:
        body = row["response"]
        if row["status"] != 200 or row["api"] != "messages" or not isinstance(body, dict):
            continue
        num_messages += 1
        theirs = fields({name: value for name, value in body.items() if name != "content"})
        check_fields(
            {n: k for n, k in theirs.items() if n not in nulls},
            known,
            BETA_FIELDS | SERVED_BY_TOOLS,
        )
        for block in body["content"]:
            if block["type"] in blocks:
                check_fields(
                    fields(block), fields(blocks[block["type"]]), {"caller", "input", "citations"}
                )
    assert num_messages > 200


def events(stream: bytes) -> list[dict[str, Any]]:
    lines = stream.decode().splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:")]


def test_our_streams_have_the_recorded_events() -> None:
    """Every kind of event and of delta that text, reasoning and calls need, with its fields."""
    encoder = WIRE.stream(parsed(ROWS[0], thinking={"type": "adaptive"}), created_at_s=0)
    raw = (
        encoder.start(Usage(5, 3, ((300.0, 2),)))
        + encoder.keepalive()
        + encoder.delta("hm", thinking=True)
    )
    raw += (
        encoder.delta("text")
        + encoder.call(0, ToolCall("find", '{"q": 1}'), begins=True)
        + encoder.finish(an_answer())
    )
    ours: dict[str, dict[str, str]] = {}
    for event in events(raw):
        ours.setdefault(kind_of(event), {}).update(fields(event))
    num_streams = 0
    for row in ROWS:
        if row["status"] != 200 or not isinstance(row["response"], str):
            continue
        num_streams += 1
        for event in events(row["response"].encode()):
            if (kind := kind_of(event)) in ours:
                ignored = {
                    "message.usage.inference_geo",
                    "delta.container",
                    "usage.iterations",
                    "usage.server_tool_use",
                }
                check_fields(
                    fields(event),
                    ours[kind],
                    ignored | {"content_block.caller", "content_block.citations"},
                )
    assert num_streams > 40
    assert set(ours) == {
        *("message_start", "ping", "content_block_stop", "message_delta", "message_stop"),
        *(
            "content_block_start text",
            "content_block_start thinking",
            "content_block_start tool_use",
        ),
        *("content_block_delta text_delta", "content_block_delta thinking_delta"),
        *("content_block_delta signature_delta", "content_block_delta input_json_delta"),
    }


def kind_of(event: dict[str, Any]) -> str:
    """The event's type, and that of the block or delta in it."""
    inner = event.get("content_block") or (
        event["delta"] if event["type"] == "content_block_delta" else {}
    )
    return f"{event['type']} {inner['type']}" if "type" in inner else str(event["type"])


CHARGES: Final = [
    (2572, 0, 2569, 63, "0.00964275", "0.000945"),
    (2649, 2569, 79, 100, "0.00106995", "0.0015"),
    (2572, 2240, 329, 100, "0.00191475", "0.0015"),
    (260, 0, 0, 10, "0.00078", "0.00015"),
    (13, 0, 0, 5, "3.9e-05", "7.5e-05"),
    (267, 0, 0, 18, "0.000801", "0.00027"),
    (3214, 0, 3211, 100, "0.01205025", "0.0015"),
    (3329, 3211, 115, 53, "0.00140355", "0.000795"),
    (17, 0, 0, 5, "5.1e-05", "7.5e-05"),
    (107, 0, 0, 44, "0.000321", "0.00066"),
    (176, 0, 0, 34, "0.000528", "0.00051"),
    (294, 0, 0, 27, "0.000882", "0.000405"),
    (566, 0, 0, 27, "0.001698", "0.000405"),
    (716, 0, 0, 29, "0.002148", "0.000435"),
]
"""Prompt, read, written for five minutes, output; what OpenRouter was charged for prompt and output
by claude-sonnet-4.6."""


@pytest.mark.parametrize(
    ("prompt", "read", "written", "output", "prompt_usd", "output_usd"), CHARGES
)
def test_recorded_charges(
    prompt: int, read: int, written: int, output: int, prompt_usd: str, output_usd: str
) -> None:
    """Usage with an exact charge prices to that charge."""
    writes = ((300.0, written),) if written else ()
    found = charge(
        Usage(prompt - read - written, read, writes, output), POLICY.prices_for("claude-sonnet-4-6")
    )
    assert (found.prompt, found.output) == (Decimal(prompt_usd), Decimal(output_usd))


def test_a_recorded_estimate() -> None:
    """The one charge that a gateway put into Anthropic's own usage."""
    usages = [
        row["response"]["usage"]
        for row in ROWS
        if isinstance(row["response"], dict) and "usage" in row["response"]
    ]
    (told,) = [usage for usage in usages if "pydantic_ai_gateway" in usage]
    found = charge(
        Usage(told["input_tokens"], output=told["output_tokens"]),
        POLICY.prices_for("claude-sonnet-4-5-20250929"),
    )
    assert float(found.total) == pytest.approx(told["pydantic_ai_gateway"]["cost_estimate"])
