"""Anthropic's rules for where cache marks may stand, how many, and in which order.

Strict: its 400s. Repair: mended marks.

Error texts are those of the API (pages "Prompt caching", 2026-08, and texts quoted in public
issues).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.prompt.types import Position
from gateway.dialects.places import Place, marks, places
from gateway.errors import InvalidRequest
from gateway.request import Request, WireName
from policies.rules import DialectRules
from policies.ttl import ttl_class_name


@dataclass(frozen=True, slots=True)
class FinalMarks:
    """The marks a plan is made from, in wire order, and what was mended to get them."""

    marks: dict[Position, float]
    warnings: list[str]


def checked(request: Request, rules: DialectRules) -> FinalMarks:
    """The request's marks, the automatic one included, if they keep the rules or could be mended.

    Raises `InvalidRequest` where a rule is broken and `caching.marker_errors` is `strict`.
    """
    return _Check(request, rules).run()


class _Check:
    """One pass over one request's marks."""

    def __init__(self, request: Request, rules: DialectRules) -> None:
        self.request = request
        self.rules = rules
        self.places = places(request.prompt)
        self.marks = marks(request.prompt)
        self.warnings: list[str] = []
        self.automatic: Position | None = None

    def run(self) -> FinalMarks:
        if self.marks or self.request.automatic is not None:
            self._off_empty_text()
            self._place_automatic()
            self._limit_number()
            self._order_ttls()
        return FinalMarks(
            {p.position: self.marks[p.position] for p in self.places if p.position in self.marks},
            self.warnings,
        )

    def _broken(self, message: str, path: str | None, *, repair: str) -> None:
        """A rule is broken: an error, or a repair that gets a name."""
        if self.rules.caching.marker_errors == "strict":
            raise InvalidRequest(message, path=path)
        self.warnings.append(repair)

    def _off_empty_text(self) -> None:
        """A mark on empty text moves to the nearest earlier place that can bear one."""
        nearest: Place | None = None
        for place in self.places:
            if place.eligible:
                nearest = place
            elif place.position in self.marks:
                path = _path(self.request.wire, place.position)
                self._broken(
                    "cache_control cannot be set for empty text blocks",
                    f"{path}.text",
                    repair="cache_control-moved",
                )
                ttl_s = self.marks.pop(place.position)
                if nearest is not None:
                    self.marks.setdefault(nearest.position, ttl_s)

    def _place_automatic(self) -> None:
        """The request-level mark stands on the last place that can bear one; a mark already there
        must agree with it."""
        ttl_s = self.request.automatic
        last = next((place.position for place in reversed(self.places) if place.eligible), None)
        if ttl_s is None or last is None:
            return
        if self.marks.get(last, ttl_s) != ttl_s:
            message = "the last block of the request has a `cache_control` with a different `ttl`"
            self._broken(message, "cache_control.ttl", repair="cache_control-automatic-dropped")
        elif last not in self.marks:
            self.marks[last] = ttl_s
            self.automatic = last

    def _limit_number(self) -> None:
        """Too many: the last mark on tools and on system stay, then the latest."""
        limit = self.rules.max_breakpoints
        if len(self.marks) <= limit:
            return
        message = (
            f"A maximum of {limit} blocks with cache_control may be provided. Found "
            f"{len(self.marks)}."
        )
        self._broken(message, None, repair="cache_control-dropped")
        latest = sorted(self.marks, key=lambda position: position.order, reverse=True)
        anchors = [
            next((p for p in latest if p.level == level), None) for level in ("tools", "system")
        ]
        kept = list(dict.fromkeys([*(p for p in anchors if p is not None), *latest]))[:limit]
        self.marks = {position: self.marks[position] for position in kept}

    def _order_ttls(self) -> None:
        """No mark may ask for longer than one before it; a longer one is cut to the shorter."""
        shortest: float | None = None
        for position in sorted(self.marks, key=lambda position: position.order):
            ttl_s = self.marks[position]
            if shortest is not None and ttl_s > shortest:
                path = (
                    "" if position == self.automatic else _path(self.request.wire, position) + "."
                )
                message = (
                    f"a ttl='{ttl_class_name(ttl_s)}' cache_control block must not come after "
                    f"a ttl='{ttl_class_name(shortest)}' cache_control block. "
                    "Note that blocks are processed in the following order: `tools`, `system`, "
                    "`messages`."
                )
                self._broken(
                    message, f"{path}cache_control.ttl", repair="cache_control-ttl-downgraded"
                )
                self.marks[position] = ttl_s = shortest
            shortest = ttl_s


def _path(wire: WireName, position: Position) -> str:
    """The position in the caller's own coordinates, where they are known: only Anthropic's match
    ours one to one."""
    if wire != "anthropic":
        return "messages"
    if position.level == "messages":
        return f"messages.{position.index}.content.{position.part}"
    return f"{position.level}.{position.index}"
