"""The reason why a request reads less of the cache than an earlier one wrote, and its cost.

Runs no model.

The same parsers, rules, template and tokenizer as the gateway's own: the result is what a
gateway of this policy does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
import orjson

from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position, Prompt, num_common
from engine.types import Boundary, CachePlan, CacheReport, Hit
from gateway.cli.differ import Difference, Kind, excerpt, first_difference
from gateway.dialects.dialect import Dialect
from gateway.dialects.openai import eligible_ends
from gateway.dialects.places import marks_of
from gateway.dialects.registry import DIALECTS
from gateway.errors import InvalidRequest, UnknownModel
from gateway.request import Request
from gateway.wire import json_text
from gateway.wire.registry import WIRES
from policies.pricing import Usage, charge, format_usd
from policies.rules import DialectRules
from policies.schema import Policy
from policies.sections import ModelPolicy

Cause: TypeAlias = (
    Kind
    | Literal[
        "other_tenant",
        "other_model",
        "not_marked",
        "below_minimum",
        "parameters",
        "expired",
        "boundary_gone",
        "lookback_exceeded",
        "nothing",
    ]
)

MEANINGS: Final[Mapping[Cause, str]] = {
    "clock": "clock-like text: it changes with time; move it behind what is cached",
    "nonce": "an identifier that differs from request to request; move it behind what is cached",
    "tool_order": "the same tools in another order",
    "key_order": "the same JSON with its keys in another order",
    "whitespace": "nothing but white space",
    "unicode": "the same characters in another Unicode form",
    "image": "an image or document on one side only",
    "removed": "a block of the first request is not there any more",
    "inserted": "a block is there that the first request did not have",
    "role": "another role",
    "text": "another text",
    "other_tenant": "another tenant: tenants share nothing",
    "other_model": "another model: each has a cache of its own",
    "not_marked": "nothing that could be read is marked",
    "below_minimum": "what is marked is shorter than the model's minimum",
    "parameters": "a parameter that belongs to a level's key, such as tool_choice, thinking or "
    "effort",
    "expired": "the entry's time had run out",
    "boundary_gone": "the entry ends where the second request has no breakpoint, marked or "
    "automatic",
    "lookback_exceeded": "the entry lies further back from the mark than is looked",
    "nothing": "nothing was missed",
}


class TemplateRenderer(Protocol):
    """Turns a prompt into tokens."""

    def render(self, prompt: Prompt) -> RenderedPrompt: ...


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts beside the two bodies: seconds from the first to the second, and whether one tenant
    sent both.

    An entry may also have been evicted, which only the gateway that did it knows (`pcg-miss-reason:
    evicted`).
    """

    after_s: float = 0.0
    same_tenant: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """`num_read` tokens of the second request are read, and `num_missed` more would be without
    `cause`, which costs `usd`."""

    cause: Cause
    position: Position | None
    difference: Difference | None
    num_prompt: int
    num_read: int
    num_missed: int
    usd: Decimal


@dataclass(frozen=True, slots=True)
class _Side:
    """One request, normalised, planned and rendered."""

    request: Request
    rendered: RenderedPrompt
    model: str
    rules: DialectRules
    dialect: Dialect

    @property
    def plan(self) -> CachePlan:
        return self.request.plan

    @property
    def measures(self) -> bool:
        """Whether skipped tokens count as read."""
        return self.rules.caching.usage_mode == "measured"

    @property
    def reads_any(self) -> bool:
        """Whether any prefix that is kept is read, and not entries alone."""
        return self.plan.any_prefix or self.measures

    def offset(self, position: Position) -> int:
        return min(self.rendered.offsets[position], len(self.rendered.token_ids) - 1)

    def boundaries(self) -> dict[Position, float]:
        """The entries that the request writes: positions of long enough prefixes, and the seconds
        of their TTL class."""
        planned = ((entry.position, entry.ttl_s) for entry in self.plan.writable)
        return {p: ttl_s for p, ttl_s in planned if self.offset(p) >= max(self.plan.min_tokens, 1)}

    def lifetimes(self) -> dict[Position, float]:
        """The same with the seconds each really lives if nobody reads it."""
        ages_s = [entry.max_age_s for entry in self.plan.writable if entry.max_age_s is not None]
        return {position: min([ttl_s, *ages_s]) for position, ttl_s in self.boundaries().items()}

    def num_kept(self, after_s: float) -> int:
        """Tokens whose KV is kept so long: all of them, later those up to the last live entry and
        not the rest of its block."""
        if after_s < self.plan.unmarked_ttl_s:
            return len(self.rendered.token_ids)
        return max(
            (
                self.offset(position)
                for position, lives_s in self.lifetimes().items()
                if after_s < lives_s
            ),
            default=0,
        )


def wire_of(body: bytes) -> str:
    """The name of the format that a body is in, by signs that only one of them has."""
    try:
        fields = json_text.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"not JSON: {error}") from None
    names = (
        name for name, wire in WIRES.items() if isinstance(fields, dict) and wire.claims(fields)
    )
    return next(names, next(iter(WIRES)))


def model_of(body: bytes, policy: Policy) -> ModelPolicy:
    """The model that would answer. Raises `InvalidRequest`, `UnknownModel`."""
    request = WIRES[wire_of(body)].parse(body, {}, request_id="why")
    model = policy.resolve_model(request.model)
    if model is None:
        raise UnknownModel(f"model: {request.model}")
    return model


def explain(
    before: bytes, after: bytes, policy: Policy, renderer: TemplateRenderer, seen: Circumstances
) -> Finding:
    """Raises `InvalidRequest`, `UnknownModel` or `BadPrompt` for a body the gateway would
    refuse."""
    a, b = (_side(body, policy, renderer) for body in (before, after))
    difference = first_difference(a.request.prompt, b.request.prompt)
    wanted = _wanted(a, b)
    read = _read(a, b, difference, seen)
    real, ideal = _usage(b, read), _usage(b, max(read, wanted))
    num_missed = ideal.cache_read - real.cache_read
    cause, position = (
        _cause(a, b, difference, seen) if num_missed or not read else ("nothing", None)
    )
    prices = policy.prices_for(b.request.model)
    usd = charge(real, prices).prompt - charge(ideal, prices).prompt
    return Finding(
        cause,
        position,
        difference,
        real.num_prompt,
        real.cache_read,
        num_missed,
        max(usd, Decimal(0)),
    )


def _side(body: bytes, policy: Policy, renderer: TemplateRenderer) -> _Side:
    wire = WIRES[wire_of(body)]
    request = wire.parse(body, {}, request_id="why")
    if wire.memory is not None:
        request = wire.memory.resume(request, lambda _: None)
    rules = policy.rules_for(request.model, wire.provider.preset)
    dialect = DIALECTS[rules.preset]
    request = dialect.normalize(msgspec.structs.replace(request, unseen=()), rules, wire)
    request = msgspec.structs.replace(request, plan=dialect.plan(request, rules))
    model = policy.resolve_model(request.model)
    rendered = renderer.render(request.prompt)
    return _Side(request, rendered, "" if model is None else model.name, rules, dialect)


def _wanted(a: _Side, b: _Side) -> int:
    """Tokens of the first request's entries that the second could read, if nothing stood in the
    way."""
    limit = len(b.rendered.token_ids) - 1
    if a.reads_any and b.reads_any:
        return min(len(a.rendered.token_ids), limit)
    return min(max(map(a.offset, a.boundaries()), default=0), limit)


def _read(a: _Side, b: _Side, difference: Difference | None, seen: Circumstances) -> int:
    """Tokens that it does read."""
    if a.model != b.model or not seen.same_tenant:
        return 0
    if b.reads_any:
        shared = min(
            num_common(a.rendered.token_ids, b.rendered.token_ids[:-1]), a.num_kept(seen.after_s)
        )
        return shared if b.measures or shared >= b.plan.min_tokens else 0
    written = a.lifetimes()
    for position in b.plan.readable:
        if (
            _is_shared(position, difference)
            and position in written
            and _may_read(a, b, position, written[position], seen)
        ):
            return b.offset(position)
    return 0


def _is_shared(position: Position, difference: Difference | None) -> bool:
    return difference is None or position.order < difference.position.order


def _may_read(a: _Side, b: _Side, position: Position, lives_s: float, seen: Circumstances) -> bool:
    level = position.level
    fits = b.offset(position) >= max(b.plan.min_tokens, 1) and a.plan.salts.get(
        level
    ) == b.plan.salts.get(level)
    return fits and seen.after_s < lives_s


def _cause(
    a: _Side, b: _Side, difference: Difference | None, seen: Circumstances
) -> tuple[Cause, Position | None]:
    """The widest reason that keeps the second request from reading the first one's last entry."""
    if not seen.same_tenant:
        return "other_tenant", None
    if a.model != b.model:
        return "other_model", None
    automatic = a.reads_any and b.reads_any
    if not automatic and not (a.plan.writable and b.plan.readable):
        return "not_marked", None
    written = a.lifetimes()
    if not written and not automatic:
        return "below_minimum", a.plan.writable[-1].position
    last = max(written, key=lambda position: position.order, default=None)
    if difference is not None and (
        automatic or last is None or difference.position.order <= last.order
    ):
        return difference.kind, difference.position
    if automatic or last is None:
        return ("expired" if a.num_kept(seen.after_s) < _wanted(a, b) else "nothing"), None
    if a.plan.salts.get(last.level) != b.plan.salts.get(last.level):
        return "parameters", last
    if seen.after_s >= written[last]:
        return "expired", last
    return ("lookback_exceeded" if _is_looked_for(b, last) else "boundary_gone"), last


def _is_looked_for(b: _Side, position: Position) -> bool:
    """Whether a read may end there, were it near enough."""
    if b.dialect.looks_back:
        return True
    automatic = b.rules.automatic and "cache_mode" not in b.request.parameters
    return position in marks_of(b.request.prompt) or (
        automatic and position in eligible_ends(b.request.prompt)
    )


def _usage(b: _Side, read: int) -> Usage:
    """The bill of the second request in tokens when so many of them are found."""
    boundaries = tuple(
        Boundary(p, b.offset(p), ttl_s, b.offset(p) <= read) for p, ttl_s in b.boundaries().items()
    )
    hit = Hit(Position("messages", 0), read, 0.0) if read else None
    report = CacheReport(len(b.rendered.token_ids), read, hit, boundaries)
    return b.dialect.usage(report, b.rules, b.plan, 0)


def finding_json(finding: Finding) -> dict[str, Any]:
    """For machines; no text of the prompts."""
    return {
        "cause": finding.cause,
        "meaning": MEANINGS[finding.cause],
        "at": None if finding.position is None else str(finding.position),
        "character": None if (shown := _shown(finding)) is None else shown.character,
        "prompt_tokens": finding.num_prompt,
        "read_tokens": finding.num_read,
        "missed_tokens": finding.num_missed,
        "cost_usd": format_usd(finding.usd),
    }


def finding_lines(finding: Finding) -> list[str]:
    """For people, with the text on either side of the difference."""
    lines = [f"{finding.cause}: {MEANINGS[finding.cause]}"]
    shown = _shown(finding)
    if finding.position is not None:
        lines.append(
            f"at {finding.position}" + ("" if shown is None else f", character {shown.character}")
        )
    if shown is not None:
        for name, text in (("first", shown.before), ("second", shown.after)):
            lines.append(f"  {name:<6} {excerpt(text, shown.character)!r}")
    lines.append(
        f"reads {finding.num_read} of {finding.num_prompt} tokens, misses {finding.num_missed}"
    )
    return [*lines, f"costs {format_usd(finding.usd)} USD more than if nothing were missed"]


def _shown(finding: Finding) -> Difference | None:
    """The difference, where it is the cause."""
    return (
        finding.difference
        if finding.difference is not None and finding.cause == finding.difference.kind
        else None
    )
