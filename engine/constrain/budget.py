"""Bounds on the cost of compiling a schema.

They are checked before the compiler starts, because it cannot be stopped.

Knows no vocabulary.

The compiler bounds most of its work by itself, but builds some of a schema as automata at once: a
state for every remainder of a `multipleOf`, a check of every pair of `patternProperties`, and a
table that grows with the square of `properties`. Measured with llguidance 1.9 on one core: 8 s and
360 MB for `"multipleOf": 999983`, 6 s for 300 patterns in one object.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from decimal import Decimal
from typing import Any, Final

from engine.constrain.digits import exact_numbers
from engine.errors import BadFormat

MAX_STATES: Final = 20_000
"""Of all `multipleOf` of a grammar: their digits without zeros at either end, added up, and their
least common multiple."""

MAX_PATTERNS: Final = 64
"""`patternProperties` in one object; of a whole grammar four times as many."""

MAX_MEMBERS: Final = 2_000
"""`properties` in one object; of a whole grammar twice as many."""

_EMBEDDED: Final = re.compile(r"%json\s*")


@dataclass(slots=True)
class Budget:
    """The cost of all schemas of one grammar so far."""

    num_states: int = 0
    multiple: int = 1
    num_patterns: int = 0
    num_members: int = 0

    def excess(self, schema: Any) -> str | None:
        """The part of a schema that costs too much, in words for the client.

        None: the schema is within the bounds, and its cost is added.
        """
        before = astuple(self)
        for node in _objects(schema):
            problem = self._take(node)
            if problem is not None:
                self.num_states, self.multiple, self.num_patterns, self.num_members = before
                return problem
        return None

    def _take(self, node: dict[str, Any]) -> str | None:
        coefficient = _coefficient(node.get("multipleOf"))
        patterns, members = _size(node.get("patternProperties")), _size(node.get("properties"))
        self.num_states += coefficient
        self.multiple = math.lcm(self.multiple, max(coefficient, 1))
        self.num_patterns += patterns
        self.num_members += members
        if max(self.num_states, self.multiple) > MAX_STATES:
            return "multipleOf: the numbers are too large, or too many"
        if patterns > MAX_PATTERNS or self.num_patterns > 4 * MAX_PATTERNS:
            return f"patternProperties: more than {MAX_PATTERNS} in one object, or too many in all"
        if members > MAX_MEMBERS or self.num_members > 2 * MAX_MEMBERS:
            return f"properties: more than {MAX_MEMBERS} in one object, or too many in all"
        return None


def check_schema(schema: Any) -> None:
    """Raises `BadFormat` for a JSON Schema that costs too much."""
    _check(Budget(), schema)


def checked_lark(text: str) -> str:
    """A Lark grammar with the numbers of its `%json` schemas held exactly. Raises `BadFormat` where
    they cannot be, or where these schemas cost too much together, or cannot be read."""
    budget, decoder, pieces, start = Budget(), json.JSONDecoder(), list[str](), 0
    while (match := _EMBEDDED.search(text, start)) is not None:
        try:
            schema, end = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            raise BadFormat("%json must be followed by a schema") from None
        _check(budget, schema)
        exact = exact_numbers(schema)
        pieces += [
            text[start : match.end()],
            text[match.end() : end] if exact == schema else json.dumps(exact),
        ]
        start = end
    return "".join([*pieces, text[start:]])


def _check(budget: Budget, schema: Any) -> None:
    problem = budget.excess(schema)
    if problem is not None:
        raise BadFormat(problem)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, itself included. What is no keyword but looks like one counts,
    too."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _coefficient(number: Any) -> int:
    """A number's digits without the zeros at either end, as an integer; 0 for what is no positive
    number."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        return 0
    digits = "".join(map(str, Decimal(repr(number)).as_tuple().digits)).strip("0")
    return int(digits) if len(digits) <= len(str(MAX_STATES)) else MAX_STATES + 1


def _size(value: Any) -> int:
    return len(value) if isinstance(value, dict) else 0
