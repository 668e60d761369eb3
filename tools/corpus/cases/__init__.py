"""The gateways of the corpus and everything they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.corpus.cases import anthropic, openai, others, refused, responses, tenants
from tools.corpus.cases.bodies import (
    WEATHER,
    block,
    chat,
    function,
    get,
    messages,
    respond,
    text,
    tool,
    user,
)
from tools.corpus.stages import Stage
from tools.corpus.steps import Step

POLICIES: Final = Path(__file__).parents[1] / "policies"


def _open() -> Iterator[Step]:
    yield from anthropic.steps()
    yield from openai.steps()
    yield from responses.steps()
    yield from refused.steps()
    yield from others.models()
    yield from others.upstreams()
    yield from others.admin()
    yield from anthropic.refused_as_cold()
    # Behind the metrics, which count how often they are asked for.
    yield from responses.background()
    yield from others.batches()


def _relay() -> Iterator[Step]:
    key = {"authorization": "Bearer mine"}
    yield chat("any", model="anything", step={"headers": key})
    yield chat("any-stream", model="anything", stream=True, step={"headers": key})
    yield respond("respond", model="anything", step={"headers": key})
    yield messages("messages", step={"headers": key})
    yield get("models", "/v1/models")
    yield get("health", "/health")
    yield get("readyz", "/readyz")
    yield get("stat", "/admin/cache/stat")
    yield get("response", "/v1/responses/resp_1")


def _default() -> Iterator[Step]:
    """The model that is shipped, in bfloat16."""
    system = [block("You are a terse assistant. " + text("house rules", 700), "5m")]
    yield messages("cold", model="claude-sonnet-5-5", max_tokens=24, system=system)
    yield messages(
        "warm",
        model="claude-sonnet-5-5",
        max_tokens=24,
        system=system,
        messages=[user("Where is Oslo?")],
        stream=True,
    )
    yield chat(
        "chat", model="gpt-4o", max_tokens=24, messages=[user("What is the capital of France?")]
    )
    yield chat(
        "chat-tool",
        max_tokens=60,
        model="gpt-4o",
        tools=[function()],
        tool_choice="required",
        messages=[user("Weather in Rome?")],
    )
    yield messages(
        "tool",
        model="claude-sonnet-5",
        tools=[tool()],
        tool_choice={"type": "any"},
        max_tokens=60,
        stream=True,
    )
    yield respond(
        "form",
        model="gpt-5.6",
        max_output_tokens=40,
        text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER}},
    )
    yield chat("logprobs", model="gpt-4o", logprobs=True, top_logprobs=2, max_tokens=4)
    yield get("models", "/v1/models")
    yield get("health", "/health")


def stages() -> tuple[Stage, ...]:
    """Everything, in the order in which it is to be asked."""
    return (
        Stage("open", _policy("open"), tuple(_open())),
        Stage("tenants", _policy("tenants"), tuple(tenants.steps())),
        Stage("restarted", _policy("tenants"), tuple(tenants.again()), goes_on=True),
        Stage("relay", _policy("relay"), tuple(_relay())),
        Stage("default", _policy("default"), tuple(_default())),
    )


def _policy(name: str) -> str:
    return (POLICIES / f"{name}.yaml").read_text(encoding="utf-8")
