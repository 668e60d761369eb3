"""OpenAI's caching rules: a request's plan, a report's bill. Page "Prompt caching" (2026-09),
openai-python 3.57 docstrings.

Two classes of models. Those that bill writes have breakpoints, implicit and explicit, and exact
boundaries. Earlier ones (and Gemini's implicit caching) read any prefix, in steps, and write for
free. Numbers come from the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from engine.prompt.types import Level, Position, Prompt
from engine.types import CachePlan, CacheReport, PlannedEntry
from gateway.dialects.anthropic import salt
from gateway.dialects.billing import settle
from gateway.dialects.places import marks_of
from gateway.request import Request
from policies.pricing import Usage
from policies.rules import DialectRules

PREFIX_PARAMETERS: Final[Sequence[str]] = (
    "parallel_tool_calls",
    "output_format",
    "effort",
    "verbosity",
    "context_management",
    "prompt_cache_key",
)
"""Settings of which every value has a cache of its own. `tool_choice` is not among them."""


def plan(request: Request, rules: DialectRules) -> CachePlan:
    """The plan of either class; `cache_mode: explicit` turns everything automatic off."""
    automatic = rules.automatic and request.parameters.get("cache_mode", "implicit") == "implicit"
    wanted = {
        position: rules.lifetime_s(ttl_s) for position, ttl_s in marks_of(request.prompt).items()
    }
    looked_up = list(wanted)[-rules.lookback :]
    if rules.bills_writes:
        ends, written = _breakpoints(request, rules, wanted, automatic=automatic)
    else:
        ends, written = [], list(wanted.items())[-rules.max_breakpoints :]
    return CachePlan(
        readable=tuple(
            sorted({*looked_up, *ends}, key=lambda position: position.order, reverse=True)
        ),
        writable=tuple(PlannedEntry(position, ttl_s) for position, ttl_s in written),
        min_tokens=rules.min_tokens,
        salts=salts(request.parameters),
        any_prefix=automatic and not rules.bills_writes,
        unmarked_ttl_s=_kept_s(request, rules),
        read=request.directives.read,
        store=request.directives.store,
        max_read_age_s=request.directives.max_age_s,
    )


def _kept_s(request: Request, rules: DialectRules) -> float:
    """`prompt_cache_retention` keeps prefixes without an entry longer, where they are kept at all
    and models have it."""
    if rules.bills_writes or rules.caching.unmarked_ttl == 0:
        return rules.caching.unmarked_ttl
    return max(rules.caching.unmarked_ttl, float(request.parameters.get("retention_s", 0.0)))


def usage(report: CacheReport, rules: DialectRules, plan: CachePlan, num_output: int) -> Usage:
    """Exact boundaries where writes are billed; else the skipped tokens, rounded down to
    `read_step`, from `min_tokens` on.

    Tokens skipped although the client forbade reading, or set an age that only entries have, are
    not read.
    """
    read = report.hit.offset if report.hit is not None else 0
    if plan.any_prefix:
        if plan.read and plan.max_read_age_s is None:
            read = report.skipped - (report.shared if plan.single_flight == "write" else 0)
        read = read // rules.read_step * rules.read_step
        read = read if read >= rules.min_tokens else 0
    return settle(report, rules, plan, read=read, num_output=num_output)


def salts(parameters: dict[str, Any]) -> dict[Level, str]:
    """One salt for all levels: tools, instructions and conversation stand and fall together."""
    chosen = {name: parameters[name] for name in PREFIX_PARAMETERS if name in parameters}
    if not chosen:
        return {}
    text = salt(chosen)
    return {"tools": text, "system": text, "messages": text}


def eligible_ends(prompt: Prompt) -> list[Position]:
    """Message ends that may be an implicit breakpoint, in wire order.

    The end of the initial developer messages, every user message, and the last tool output of a run
    of them.
    """
    ends: list[Position] = []
    if prompt.system:
        ends.append(Position("system", len(prompt.system) - 1))
    for i, message in enumerate(prompt.messages):
        run_goes_on = i + 1 < len(prompt.messages) and prompt.messages[i + 1].role == "tool"
        if message.parts and (
            message.role == "user" or (message.role == "tool" and not run_goes_on)
        ):
            ends.append(Position("messages", i, len(message.parts) - 1))
    return ends


def _breakpoints(
    request: Request, rules: DialectRules, wanted: dict[Position, float], *, automatic: bool
) -> tuple[Iterable[Position], list[tuple[Position, float]]]:
    """Message ends to look up, and entries to write: the latest marks, one of them the automatic
    one unless it is turned off."""
    ends = eligible_ends(request.prompt)
    if not automatic or not ends:
        return [], list(wanted.items())[-rules.max_breakpoints :]
    implicit = ends[-1]
    asked_s = request.parameters.get("cache_ttl_s")
    ttl_s = wanted.get(
        implicit, rules.default_ttl_s if asked_s is None else rules.lifetime_s(asked_s)
    )
    others = [
        (position, mark_ttl_s) for position, mark_ttl_s in wanted.items() if position != implicit
    ]
    kept = others[max(len(others) - (rules.max_breakpoints - 1), 0) :]
    written = sorted([*kept, (implicit, ttl_s)], key=lambda entry: entry[0].order)
    earlier = ends[:-1][-rules.message_ends :] if rules.message_ends else []
    initial = ends[:1] if request.prompt.system else []
    return [*earlier, *initial, implicit], written
