"""Numbers of a JSON Schema that the grammar compiler cannot hold: it reads all of them as doubles.
Pure data.

An integer of more than 53 bits would become its neighbour, and an answer be outside the schema.
Bounds are drawn in to the nearest double within them, so that what validates against the result
validates against the client's own; a value that is no double is refused. The compiler's own
arithmetic ends at 64 bits, and overflows at the smallest of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from engine.errors import BadFormat

EXACT: Final = 2**53
"""Up to here every integer is a double."""

MOST_INTEGER: Final = 2**63 - 1
"""The compiler saturates here, so that this bound is exact although it is no double."""

LEAST_INTEGER: Final = -(2**63) + 1024
"""The smallest double that the compiler can negate."""

MOST_NUMBER: Final = 10**15
"""Doubles that are larger are not written exactly by the compiler."""

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def exact_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """One schema, without those in it, with bounds that the compiler holds exactly. Raises
    `BadFormat` where it cannot hold a value or a bound."""
    for value in (schema[word] for word in ("const", "enum") if word in schema):
        _check_values(value)
    bounds = [schema[word] for word in _BOUNDS if _is_number(schema.get(word))]
    kinds = schema.get("type")
    is_integer = kinds == "integer" or (
        isinstance(kinds, list) and "integer" in kinds and "number" not in kinds
    )
    if all(abs(bound) <= (EXACT if is_integer else MOST_NUMBER) for bound in bounds):
        return dict(schema)
    if not all(map(math.isfinite, (bound for bound in bounds if isinstance(bound, float)))):
        raise BadFormat("a bound of a number is infinite")
    narrow = _integers if is_integer else _numbers
    least, most = narrow(*_limits(schema))
    if least is not None and most is not None and least > most:
        raise BadFormat(
            "minimum, maximum: no number between them can be held exactly (integers of up to 53 "
            "bits can)"
        )
    kept = {
        word: value
        for word, value in schema.items()
        if word not in _BOUNDS or not isinstance(value, int | float)
    }
    return kept | _present("minimum", least) | _present("maximum", most)


def _limits(schema: Mapping[str, Any]) -> tuple[Fraction | None, Fraction | None]:
    """The inclusive bounds of a schema. An exclusive one is moved by as little as makes no
    difference to an integer, and by less than a double of that size can say."""
    minimum, maximum, over, under = (schema.get(word) for word in _BOUNDS)
    least = [
        _above(limit) if over is True else limit for limit in _fractions(minimum)
    ]  # true: as in draft 4
    most = [-_above(-limit) if under is True else limit for limit in _fractions(maximum)]
    least += map(_above, _fractions(over))
    most += [-_above(-limit) for limit in _fractions(under)]
    return max(least, default=None), min(most, default=None)


def _fractions(limit: Any) -> list[Fraction]:
    """A limit that is a number, as a list of one."""
    return [Fraction(limit)] if _is_number(limit) else []


def _above(limit: Fraction) -> Fraction:
    """The smallest number above a limit: the next integer, or the next float of a small limit.

    Fractions count below `MOST_NUMBER`.
    """
    if abs(limit) > MOST_NUMBER:
        return Fraction(math.floor(limit) + 1)
    return Fraction(math.nextafter(float(limit), math.inf))


def _integers(least: Fraction | None, most: Fraction | None) -> tuple[float | None, float | None]:
    """Bounds of integers, both where one lies beyond what the compiler counts to by itself."""
    if (least is not None and least > MOST_INTEGER) or (most is not None and most < LEAST_INTEGER):
        raise BadFormat("minimum, maximum: the integers between them have more than 64 bits")
    low = None if least is None else max(math.ceil(least), LEAST_INTEGER)
    high = None if most is None else min(math.floor(most), MOST_INTEGER)
    if low is not None and low > EXACT:
        low, high = _inwards(low, up=True), MOST_INTEGER if high is None else high
    elif low is not None and low < -EXACT:
        low = _inwards(low, up=True)
    if high is not None and abs(high) > EXACT and high != MOST_INTEGER:
        low, high = LEAST_INTEGER if low is None and high < 0 else low, _inwards(high, up=False)
    return low, high


def _inwards(limit: int, *, up: bool) -> int:
    """The nearest double that is not below a limit, or not above it."""
    near = float(limit)
    if (near < limit) if up else (near > limit):
        near = math.nextafter(near, math.inf if up else -math.inf)
    return int(near)


def _numbers(least: Fraction | None, most: Fraction | None) -> tuple[float | None, float | None]:
    """Bounds of numbers that need not be integers: their digits have an end anyway
    (`digits.py`)."""
    if (least is not None and least > MOST_NUMBER) or (most is not None and most < -MOST_NUMBER):
        raise BadFormat(
            "minimum, maximum: numbers beyond 1e15 are only held as integers (`type: integer`)"
        )
    return _clamped(least), _clamped(most)


def _clamped(limit: Fraction | None) -> float | None:
    if limit is None:
        return None
    if abs(limit) > MOST_NUMBER:
        return MOST_NUMBER if limit > 0 else -MOST_NUMBER
    return int(limit) if limit.denominator == 1 else float(limit)


def _check_values(value: Any) -> None:
    for number in _numbers_in(value):
        if isinstance(number, float):
            if not math.isfinite(number):
                raise BadFormat("const, enum: a number is infinite")
        elif abs(number) > EXACT and (
            not LEAST_INTEGER <= number <= MOST_INTEGER or not _is_held(number)
        ):
            raise BadFormat(
                f"const, enum: {_shown(number)} cannot be held exactly; integers of up to 53 bits "
                "can"
            )


def _is_held(number: int) -> bool:
    return number == MOST_INTEGER or int(float(number)) == number


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**40 else "an integer of more than 40 digits"


def _numbers_in(value: Any) -> Iterator[int | float]:
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        elif _is_number(value):
            yield value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _present(word: str, limit: float | None) -> dict[str, float]:
    return {} if limit is None else {word: limit}
