"""The description of a number that an engine reports, kept with the field that holds the number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

MetricKind: TypeAlias = Literal["counter", "gauge"]

_NUMBER: Final = "number"


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Family:
    """Several numbers that `/metrics` shows as one metric. `name` is without `pcg_`; `labels` tell
    the numbers apart, besides those that every number of an engine has."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """One number that an engine reports as `key`, and `/metrics` shows as `family` with `labels`.

    `key` stands behind `pcg_` for a number that is a metric of its own.
    """

    key: str
    kind: MetricKind
    family: Family
    labels: tuple[str, ...] = ()


def counter(shown: str | Family, *labels: str) -> Any:
    """A field that counts from 0. `shown`: the meaning of a metric of its own, or the family that
    it belongs to with `labels`."""
    return field(default=0, metadata={_NUMBER: ("counter", shown, labels)})


def gauge(shown: str | Family, *labels: str, default: Any = MISSING) -> Any:
    """A field with a measure of the moment. `shown` is as for `counter`."""
    return field(default=default, metadata={_NUMBER: ("gauge", shown, labels)})


def numbers(table: type[_Dataclass], prefix: str, tier: str | None = None) -> Iterator[Number]:
    """The numbers in the fields of a dataclass. Those of a `tier` have its name as first label, or
    in their meaning."""
    for item in fields(table):
        kind, shown, labels = item.metadata[_NUMBER]
        key = _key(item.name, kind, prefix)
        if isinstance(shown, Family):
            yield Number(key, kind, shown, labels if tier is None else (tier, *labels))
        else:
            text = shown if tier is None else f"{shown} ({tier})"
            yield Number(key, kind, Family(key, f"{text}."))


def values(table: _Dataclass, prefix: str) -> dict[str, float]:
    """The values in the fields of a dataclass, by the keys of `numbers`."""
    return {
        _key(item.name, item.metadata[_NUMBER][0], prefix): float(getattr(table, item.name))
        for item in fields(table)
    }


def _key(name: str, kind: MetricKind, prefix: str) -> str:
    """`prefix_x` for a field `x` or `num_x`, and `prefix_x_total` for a counter."""
    return f"{prefix}_{name.removeprefix('num_')}{'_total' if kind == 'counter' else ''}"
