"""Anthropic's rules for where cache marks may stand, how many, and in which order.

Strict: its 400s. Repair: mended marks.

Error texts are those of the API (pages "Prompt caching", 2026-08, and texts quoted in public
issues).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.prompt.types import Position
from gateway.dialects.places import can_bear_mark, last_eligible
from gateway.dialects.words import ErrorWords
from gateway.errors import InvalidRequest
from gateway.request import Request
from policies.rules import DialectRules
from policies.ttl import ttl_class_name


@dataclass(frozen=True, slots=True)
class FinalMarks:
    """The marks that a plan is made from, and the names of the repairs that made them."""

    marks: Mapping[Position, float]
    warnings: Sequence[str] = ()


def checked_marks(
    request: Request, marks: Mapping[Position, float], rules: DialectRules, words: ErrorWords
) -> FinalMarks:
    """The marks in wire order, the automatic one included, if they keep Anthropic's rules or could
    be mended.

    Raises `InvalidRequest` where a rule is broken and `caching.marker_errors` is `strict`.
    """
    if not marks and request.automatic is None:
        return FinalMarks(marks)
    return _Check(request, marks, rules, words).run()


def automatic_mark(
    request: Request, marks: Mapping[Position, float], rules: DialectRules, words: ErrorWords
) -> FinalMarks:
    """The marks with the request-level one on the last place that can bear one, unless it has a
    mark already."""
    last = None if request.automatic is None else last_eligible(request.prompt)
    if last is None or request.automatic is None:
        return FinalMarks(marks)
    return FinalMarks({last: request.automatic, **marks})


class _Check:
    """One pass over one request's marks."""

    def __init__(
        self,
        request: Request,
        marks: Mapping[Position, float],
        rules: DialectRules,
        words: ErrorWords,
    ) -> None:
        self.request = request
        self.marks = dict(marks)
        self.rules = rules
        self.words = words
        self.warnings: list[str] = []
        self.automatic: Position | None = None

    def run(self) -> FinalMarks:
        self._off_empty_text()
        self._place_automatic()
        self._limit_number()
        self._order_ttls()
        in_order = sorted(self.marks, key=lambda position: position.order)
        return FinalMarks({position: self.marks[position] for position in in_order}, self.warnings)

    def _broken(self, message: str, path: str | None, *, repair: str) -> None:
        """A rule is broken: an error, or a repair that gets a name."""
        if self.rules.caching.marker_errors == "strict":
            raise InvalidRequest(message, path=path)
        self.warnings.append(repair)

    def _off_empty_text(self) -> None:
        """A mark on empty text moves to the nearest earlier place that can bear one."""
        nearest: Position | None = None
        for position, part in self.request.prompt.parts():
            if can_bear_mark(part):
                nearest = position
            elif position in self.marks:
                path = self.words.path_of(position)
                self._broken(
                    "cache_control cannot be set for empty text blocks",
                    f"{path}.text",
                    repair="cache_control-moved",
                )
                ttl_s = self.marks.pop(position)
                if nearest is not None:
                    self.marks.setdefault(nearest, ttl_s)

    def _place_automatic(self) -> None:
        """The request-level mark stands on the last place that can bear one; a mark already there
        must agree with it."""
        ttl_s = self.request.automatic
        last = last_eligible(self.request.prompt)
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
                path = "" if position == self.automatic else self.words.path_of(position) + "."
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
