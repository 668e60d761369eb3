"""What a body costs before the engine sees it: twice the items cost at most about twice as much,
on every route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson
import pytest

from engine.messages import Submit, encode_frame
from gateway.backends.prefixes import trace_prefixes
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.state.diagnoses import Diagnoses
from gateway.upstream.splice import summarize, with_model
from gateway.wire.anthropic import MESSAGES_WIRE
from gateway.wire.anthropic.batch import read_items
from gateway.wire.base import Answer, StoredResponse, Wire
from gateway.wire.openai import CHAT_WIRE
from gateway.wire.openai.completions import COMPLETIONS_WIRE
from gateway.wire.openai.responses import responses_wire
from gateway.wire.openai.responses.compact import compact_wire
from gateway.wire.openai.responses.sealed import sealed
from gateway.wire.reported import merge
from policies.pricing import Usage
from policies.sections import NormalizePolicy
from tests.fakes import dialects
from tests.fakes.growth import assert_linear
from tests.fakes.rules import ANTHROPIC, OPENAI, rules

NUM: Final = 6_000

MESSAGES, CHAT, COMPLETIONS = MESSAGES_WIRE, CHAT_WIRE, COMPLETIONS_WIRE
RESPONSES, COMPACT = responses_wire(new_id=lambda: "new"), compact_wire(new_id=lambda: "new")
ANSWER: Final = Answer("said", "stop", None, Usage(1))
MARK: Final = {"cache_control": {"type": "ephemeral"}}
TEXT: Final = {"type": "text", "text": "x"}
CALL: Final = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SEALED: Final = sealed("thought")

Items = Callable[[int], dict[str, Any]]


def anthropic(**more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]} | more


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | more


def said(*blocks: Any, role: str = "user") -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "q"},
        {"role": role, "content": list(blocks)},
        {"role": "user", "content": "go on"},
    ]


def each(num: int, make: Callable[[int], Any]) -> list[Any]:
    return [make(i) for i in range(num)]


def turns(num: int, *roles: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": "x"} for _ in range(num // len(roles)) for role in roles] + [
        {"role": "user", "content": "end"}
    ]


def tool_use(i: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"t{i}", "name": f"name{i}", "input": {"a": i}}


def named(i: int) -> dict[str, Any]:
    return {"name": f"name{i}", "input_schema": {"type": "object"}}


def function(i: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"name{i}"}}


def bare(i: int) -> dict[str, Any]:
    return {"type": "function", "name": f"name{i}"}


def deferred(num: int) -> dict[str, Any]:
    """A longer and longer definition, and more and more references to it: each stands for the whole
    definition."""
    long = {"name": "f", "description": "d" * (10 * num), "input_schema": {}, "defer_loading": True}
    refs = [{"type": "tool_reference", "tool_name": "f"}] * (num // 10)
    return anthropic(
        tools=[long], messages=said({"type": "tool_result", "tool_use_id": "t", "content": refs})
    )


def result(i: int) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"t{i}", "content": [TEXT, TEXT]}


MESSAGES_KINDS: Final[dict[str, Items]] = {
    "messages": lambda n: anthropic(messages=turns(n, "user", "assistant")),
    "messages of one role": lambda n: anthropic(messages=turns(n, "user")),
    "system turns": lambda n: anthropic(messages=turns(n, "user", "system", "assistant")),
    "text blocks": lambda n: anthropic(messages=said(*[TEXT] * n)),
    "tool calls": lambda n: anthropic(messages=said(*each(n, tool_use), role="assistant")),
    "calls at the end": lambda n: anthropic(
        messages=said(*each(n, tool_use), role="assistant")[:2]
    ),
    "tool results": lambda n: anthropic(messages=said(*each(n, result))),
    "blocks of one result": lambda n: anthropic(
        messages=said({"type": "tool_result", "tool_use_id": "t", "content": [TEXT] * n})
    ),
    "thinking": lambda n: anthropic(
        messages=said(
            *[{"type": "thinking", "thinking": "x", "signature": "s"}] * n, role="assistant"
        )
    ),
    "documents": lambda n: anthropic(
        messages=said(
            *[
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                }
            ]
            * n
        )
    ),
    "images": lambda n: anthropic(
        messages=said(
            *[{"type": "image", "source": {"type": "base64", "media_type": "i", "data": "aGk="}}]
            * n
        )
    ),
    "search results": lambda n: anthropic(
        messages=said({"type": "search_result", "title": "t", "source": "s", "content": [TEXT] * n})
    ),
    "system blocks": lambda n: anthropic(system=[TEXT] * n),
    "tools": lambda n: anthropic(tools=each(n, named)),
    "hosted tools": lambda n: anthropic(
        tools=each(n, lambda i: {"type": "web_search", "name": f"w{i}"})
    ),
    "deferred tools": lambda n: anthropic(
        tools=each(n, lambda i: named(i) | {"defer_loading": True}),
        messages=said(
            {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": each(n, lambda i: {"type": "tool_reference", "tool_name": f"name{i}"}),
            }
        ),
    ),
    "references to one deferred tool": deferred,
    "properties of a schema": lambda n: anthropic(
        tools=[named(0) | {"input_schema": {f"p{i}": {} for i in range(n)}}]
    ),
    "marks in one message": lambda n: anthropic(messages=said(*[TEXT | MARK] * (4 * n))),
    "marks on messages": lambda n: anthropic(
        messages=[{"role": "user", "content": [TEXT | MARK]}] * n
    ),
    "marks on empty text": lambda n: anthropic(
        messages=said(TEXT, *[{"type": "text", "text": ""} | MARK] * n)
    ),
    "marks on thinking": lambda n: anthropic(
        messages=said(
            *[{"type": "thinking", "thinking": "x", "signature": "s"} | MARK] * n, role="assistant"
        )
    ),
    "stop sequences": lambda n: anthropic(stop_sequences=["x"] * n),
    "metadata": lambda n: anthropic(metadata={f"k{i}": "v" for i in range(n)}),
    "fields nobody knows": lambda n: anthropic() | {f"f{i}": [] for i in range(n)},
    "nests in an ignored field": lambda n: anthropic(ignored=[[[]]] * n),
    "comparisons": lambda n: anthropic(
        diagnostics={"previous_message_id": None},
        messages=turns(n, "user", "assistant"),
        context_management={"edits": [{}] * n},
    ),
    "properties of an output schema": lambda n: anthropic(
        output_config={"format": {"type": "json_schema", "schema": {f"p{i}": {} for i in range(n)}}}
    ),
}
CHAT_KINDS: Final[dict[str, Items]] = {
    "messages": lambda n: chat(messages=turns(n, "user", "assistant")),
    "messages of one role": lambda n: chat(messages=turns(n, "assistant")),
    "system messages": lambda n: chat(messages=turns(n, "system")),
    "late system messages": lambda n: chat(messages=turns(n, "user", "system")),
    "content parts": lambda n: chat(messages=said(*[TEXT] * n)),
    "tool calls": lambda n: chat(
        messages=[*turns(1, "user"), {"role": "assistant", "tool_calls": [CALL] * n}]
    ),
    "tool results": lambda n: chat(
        messages=each(n, lambda i: {"role": "tool", "tool_call_id": f"c{i}", "content": "r"})
    ),
    "parts of one result": lambda n: chat(
        messages=[{"role": "tool", "tool_call_id": "c", "content": [TEXT | MARK] * n}]
    ),
    "tools": lambda n: chat(tools=each(n, function)),
    "allowed tools": lambda n: chat(
        tools=each(n, function),
        tool_choice={
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": each(n, function)},
        },
    ),
    "breakpoints": lambda n: chat(
        messages=said(*[TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}] * n)
    ),
    "stop strings": lambda n: chat(stop=["x"] * n),
    "logit_bias": lambda n: chat(logit_bias={str(i): 1 for i in range(n)}),
    "metadata": lambda n: chat(metadata={f"k{i}": "v" for i in range(n)}),
    "modalities": lambda n: chat(modalities=["text"] * n),
    "choices of an answer": lambda n: chat(structured_outputs={"choice": each(n, str)}),
    "properties of an output schema": lambda n: chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {f"p{i}": {} for i in range(n)}},
        }
    ),
    "nests in an ignored field": lambda n: chat(ignored=[[[]]] * n),
}
ITEM_KINDS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "messages": lambda i: {"role": ("user", "assistant")[i % 2], "content": "x"},
    "instructions": lambda i: {"role": "developer", "content": "x"},
    "reasoning": lambda i: {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "x"}],
    },
    "sealed reasoning": lambda i: {"type": "reasoning", "summary": [], "encrypted_content": SEALED},
    "reasoning of others": lambda i: {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": "theirs",
    },
    "compactions": lambda i: {"type": "compaction", "encrypted_content": SEALED},
    "function calls": lambda i: {
        "type": "function_call",
        "call_id": f"c{i}",
        "name": f"name{i}",
        "arguments": "{}",
    },
    "custom calls": lambda i: {
        "type": "custom_tool_call",
        "call_id": f"c{i}",
        "name": "n",
        "input": "x",
    },
    "results": lambda i: {"type": "function_call_output", "call_id": f"c{i}", "output": "r"},
    "texts of the assistant": lambda i: {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "x"}] * 2,
    },
}
RESPONSES_KINDS: Final[dict[str, Items]] = {
    **{
        name: lambda n, item=item: {"model": "m", "input": each(n, item)}
        for name, item in ITEM_KINDS.items()
    },
    "parts of one message": lambda n: {
        "model": "m",
        "input": [{"role": "user", "content": [TEXT] * n}],
    },
    "parts of one result": lambda n: {
        "model": "m",
        "input": [{"type": "function_call_output", "call_id": "c", "output": [TEXT | MARK] * n}],
    },
    "parts of one thought": lambda n: {
        "model": "m",
        "input": [
            {"type": "reasoning", "summary": [], "content": [TEXT] * n},
            {"role": "user", "content": "q"},
        ],
    },
    "tools": lambda n: {"model": "m", "input": "x", "tools": each(n, bare)},
    "allowed tools": lambda n: {
        "model": "m",
        "input": "x",
        "tools": each(n, bare),
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": each(n, bare)},
    },
    "metadata": lambda n: {
        "model": "m",
        "input": "x",
        "metadata": {f"k{i}": "v" for i in range(n)},
    },
    "include": lambda n: {"model": "m", "input": "x", "include": ["x"] * n},
    "nests in an ignored field": lambda n: {"model": "m", "input": "x", "ignored": [[[]]] * n},
}
COMPLETIONS_KINDS: Final[dict[str, Items]] = {
    "prompts": lambda n: {"model": "m", "prompt": ["x"] * n},
    "token ids": lambda n: {"model": "m", "prompt": list(range(10 * n))},
    "prompts of token ids": lambda n: {"model": "m", "prompt": [list(range(n // 20))] * 100},
    "logit_bias": lambda n: {
        "model": "m",
        "prompt": "x",
        "logit_bias": {str(i): 1 for i in range(n)},
    },
    "nests in an ignored field": lambda n: {"model": "m", "prompt": "x", "ignored": [[[]]] * n},
}
KINDS: Final = [
    pytest.param(wire, kind, id=f"{route} {name}")
    for route, wire, kinds in (
        ("messages", MESSAGES, MESSAGES_KINDS),
        ("chat", CHAT, CHAT_KINDS),
        ("responses", RESPONSES, RESPONSES_KINDS),
        ("compact", COMPACT, RESPONSES_KINDS),
        ("completions", COMPLETIONS, COMPLETIONS_KINDS),
    )
    for name, kind in kinds.items()
]


def serve(
    wire: Wire, body: bytes, find: Callable[[str], StoredResponse | None] = lambda name: None
) -> None:
    """Everything that is done about a body outside the engine; also for one that is refused."""
    try:
        request = wire.parse(body, {}, request_id="r")
        if wire.memory is not None:
            request = wire.memory.resume(request, find)
        planned(request)
    except InvalidRequest as error:
        wire.encode_error(error, request_id="r")
        return
    if wire.memory is not None:
        wire.memory.keep(request, ANSWER, created_at_s=0.0)
        wire.encode_answer(request, ANSWER, created_at_s=0.0)


SORTED = NormalizePolicy(tool_order="by_name", json_keys="sort")


def planned(request: Request) -> None:
    """What follows the parser, where marks that may not be are mended and where tools and keys are
    sorted."""
    own = ANTHROPIC if request.wire == "anthropic" else OPENAI
    for chosen in (
        rules(ANTHROPIC, marker_errors="repair", normalize=SORTED),
        own,
    ):
        made = dialects.normalize(msgspec.structs.replace(request, unseen=()), chosen)
        made = msgspec.structs.replace(made, plan=dialects.plan(made, chosen))
        made = Diagnoses().diagnose(made)
        trace_prefixes(made)
        submit = Submit("r", "t", made.prompt, made.plan, made.sampling, 0.0)
        encode_frame(submit)


@pytest.mark.parametrize(("wire", "kind"), KINDS)
def test_twice_the_items_cost_twice_as_much(wire: Wire, kind: Items) -> None:
    """Of every kind of item that a body can have many of, on every route with a parser of its
    own."""

    def cost(num: int) -> Callable[[], object]:
        body = orjson.dumps(kind(num))
        return lambda: serve(wire, body)

    assert_linear(cost, NUM)


@pytest.mark.parametrize("own", [False, True], ids=["listed", "own ids"])
def test_twice_the_references_cost_twice_as_much(own: bool) -> None:
    """Items of a stored response that are only named."""
    thought = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "x"}],
    }

    def cost(num: int) -> Callable[[], object]:
        items = each(
            num,
            lambda i: thought | {"id": f"rs_new_{i}"} if own else {"role": "user", "content": "x"},
        )
        first = RESPONSES.parse(orjson.dumps({"model": "m", "input": items}), {}, request_id="r")
        kept = RESPONSES.memory.keep(first, ANSWER, created_at_s=0.0)
        refs = [
            {"type": "item_reference", "id": item["id"]} for item in orjson.loads(kept.items or b"")
        ]
        body = orjson.dumps({"model": "m", "input": refs})
        return lambda: serve(RESPONSES, body, lambda name: kept)

    assert_linear(cost, NUM)


def test_twice_the_turns_of_an_earlier_conversation_cost_twice_as_much() -> None:
    """Where a request goes on from a response that was kept."""

    def cost(num: int) -> Callable[[], object]:
        items = each(num, ITEM_KINDS["function calls"])
        first = RESPONSES.parse(orjson.dumps({"model": "m", "input": items}), {}, request_id="r")
        kept = RESPONSES.memory.keep(first, ANSWER, created_at_s=0.0)
        body = orjson.dumps({"model": "m", "input": items, "previous_response_id": "resp_new"})
        return lambda: serve(RESPONSES, body, lambda name: kept)

    assert_linear(cost, NUM)


def test_twice_the_requests_of_a_batch_cost_twice_as_much() -> None:
    """What a batch's body costs before it is kept."""

    def cost(num: int) -> Callable[[], object]:
        body = orjson.dumps(
            {"requests": each(num, lambda i: {"custom_id": f"i{i}", "params": anthropic()})}
        )
        return lambda: read_items(body)

    assert_linear(cost, NUM)


@pytest.mark.parametrize("extra", ['"model": "n", ', '"m\\u006fdel": "n", ', ""])
def test_finding_the_model_of_a_passed_body_costs_what_the_body_is_long(extra: str) -> None:
    """Nests beside it, and one model or two."""

    def work(body: bytes) -> None:
        try:
            with_model(body, summarize(body).model)  # type: ignore[union-attr]
        except InvalidRequest:
            return

    def cost(num: int) -> Callable[[], object]:
        body = (
            f'{{{extra}"a": {[[{}]] * num}, '
            f'{", ".join(f"{chr(34)}k{i}{chr(34)}: [{i}]" for i in range(num))}, "model": "m"}}'
        )
        return lambda: work(body.encode())

    assert_linear(cost, NUM)


def test_what_is_known_of_usage_costs_nothing_again() -> None:
    """One event with many fields and many with few."""

    def cost(num: int) -> Callable[[], object]:
        def work() -> None:
            known: dict[str, Any] = {}
            for usage in (
                {f"k{i}": i for i in range(num)},
                *[{"output_tokens": 1, "details": {"a": 1}}] * num,
            ):
                merge(known, usage)

        return work

    assert_linear(cost, NUM)
