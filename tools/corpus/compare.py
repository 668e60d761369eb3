"""Two recordings next to each other: what differs,
and the control that a difference would have been seen.

Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tools.corpus.normalize import lines
from tools.corpus.steps import Record

CONTEXT: Final = 2

Change: TypeAlias = Callable[[Record], Record]

CONTROLS: Final[Mapping[str, Change]] = {
    "status": lambda record: replace(record, status=record.status + 1),
    "a header left out": lambda record: replace(record, headers=record.headers[:-1]),
    "headers in another order": lambda record: replace(
        record, headers=record.headers[1:] + record.headers[:1]
    ),
    "a byte more": lambda record: replace(record, body=record.body + " "),
    "a byte in the middle": lambda record: replace(record, body=_broken(record.body)),
}
"""Changes of a wire answer that no comparison may miss."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A request that is answered in two ways, or in one recording only."""

    name: str
    diff: str


def compare(former: Sequence[Record], latter: Sequence[Record]) -> list[Difference]:
    """Every difference, in the order of the former recording."""
    return list(_differences(former, latter))


def unseen_changes(records: Sequence[Record]) -> list[str]:
    """Changes of single answers that the comparison does not see: there must be none."""
    return [
        f"{record.name}: {what}"
        for record in records
        for what, change in CONTROLS.items()
        if not _diff(record, change(record))
    ]


def _differences(former: Sequence[Record], latter: Sequence[Record]) -> Iterator[Difference]:
    others = {record.name: record for record in latter}
    for record in former:
        other = others.pop(record.name, None)
        if other is None:
            yield Difference(record.name, f"- {record.name} is in the former recording only")
        elif diff := _diff(record, other):
            yield Difference(record.name, diff)
    for name in others:
        yield Difference(name, f"+ {name} is in the latter recording only")


def _diff(one: Record, other: Record) -> str:
    """As unified diff; empty where nothing differs."""
    before, after = lines(one), lines(other)
    if before == after:
        return ""
    return "\n".join(
        difflib.unified_diff(before, after, one.name, other.name, lineterm="", n=CONTEXT)
    )


def _broken(body: str) -> str:
    """With another character in its middle, in no id and no time; a body of less is one byte
    longer."""
    for colon in ('":', ": ", "e"):
        place = body.find(colon, len(body) // 2)
        if place >= 0:
            return body[:place] + "?" + body[place + 1 :]
    return body + "?"
