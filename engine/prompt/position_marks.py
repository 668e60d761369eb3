"""Invisible marks around the content of each position, and where they come out of a template.

Knows no tokens.

A mark is one private-use character: `begin(p) + content + end(p)`. A template moves content about
without looking into it, so the marks show in its output where the content went. Templates may trim
content, and marks keep whitespace from being trimmed: `locate` allows for that, part by part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from engine.prompt.numerals import to_text
from engine.prompt.types import Level, Position

Owner: TypeAlias = tuple[Level, int]
"""The tool, system block or message a position belongs to: marks are given up for a whole owner."""

PRIVATE: Final = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
"""Unicode's private-use characters: the only ones that a mark or a breaker may be."""

_STAND_IN: Final = re.compile(
    r'"(?:[\ue000-\uf8ff\U000f0000-\U0010ffff]{2}|(?:\\u[0-9a-f]{4}){2,4})"'
)
"""A pair of marks alone, as JSON writes it."""

_LOOKAHEAD: Final = 64


class Marks(Protocol):
    """Puts marks around content, or leaves it alone."""

    def text(self, position: Position, text: str) -> str:
        """`text`, marked; text without a visible character stays as it is, so that a template's
        `if` sees the same."""
        ...

    def data(self, position: Position, data: dict[str, Any]) -> dict[str, Any]:
        """An equal dict whose JSON text, written by `to_json_marked`, is marked."""
        ...


class NoMarks:
    """Leaves content alone."""

    def text(self, position: Position, text: str) -> str:
        return text

    def data(self, position: Position, data: dict[str, Any]) -> dict[str, Any]:
        return data


class MarkedDict(dict[str, Any]):
    """A dict that knows its marks. To a template it is a plain dict: the names are out of the
    sandbox's reach."""

    __slots__ = ("_begin", "_end")

    def __init__(self, data: Mapping[str, Any], begin: str, end: str) -> None:
        super().__init__(data)
        self._begin = begin
        self._end = end

    def wrap(self, text: str) -> str:
        return f"{self._begin}{text}{self._end}"


class PrivateMarks:
    """A pair of characters for each position. `alphabet` holds characters that occur neither in
    content nor in the template."""

    def __init__(
        self,
        positions: Iterable[Position],
        alphabet: str,
        unmarked_owners: frozenset[Owner] = frozenset(),
    ) -> None:
        """Makes the marks of all positions that can be marked.

        Positions of `unmarked_owners`, and those for which the alphabet has no pair left, stay
        unmarked.
        """
        pairs = zip(alphabet[::2], alphabet[1::2], strict=False)
        wanted = (position for position in positions if owner(position) not in unmarked_owners)
        self._pairs = dict(zip(wanted, pairs, strict=False))
        self.meaning = {
            mark: (position, is_end)
            for position, pair in self._pairs.items()
            for is_end, mark in enumerate(pair)
        }
        self.positions = tuple(self._pairs)

    def text(self, position: Position, text: str) -> str:
        pair = self._pairs.get(position)
        if pair is None or not text or text.isspace():
            return text
        return f"{pair[0]}{text}{pair[1]}"

    def data(self, position: Position, data: dict[str, Any]) -> dict[str, Any]:
        pair = self._pairs.get(position)
        return data if pair is None else MarkedDict(data, *pair)


@dataclass(slots=True)
class Located:
    """Places in a text, as character indexes: where content begins, and where each position's
    content ends last.

    `complete` says that no content stands before the first of `begins`.
    """

    begins: set[int] = field(default_factory=set)
    ends: dict[Position, int] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The marked text differs from the text, next to content of `owners`."""

    owners: frozenset[Owner]


def owner(position: Position) -> Owner:
    return (position.level, position.index)


def locate(text: str, marked: str, marks: PrivateMarks) -> Located | Mismatch:
    """The places of `marked`'s marks in `text`; a `Mismatch` unless removing them (and whitespace
    the template trims) gives `text`."""
    pieces, found = _split(marked, marks)
    located = Located()
    cursor = 0
    for i, piece in enumerate(pieces):
        inside = i > 0 and not found[i - 1][1]
        following = pieces[i + 1][:_LOOKAHEAD] if i + 1 < len(pieces) and found[i][1] else ""
        length = _match(text, cursor, piece, following, inside)
        if length is None or (i + 1 == len(pieces) and cursor + length != len(text)):
            nearby = [position for position, _ in found[max(0, i - 1) : i + 1]]
            return Mismatch(frozenset(owner(position) for position in nearby or marks.positions))
        cursor += length
        if i == len(found):
            break
        position, is_end = found[i]
        if is_end:
            located.complete = located.complete and bool(located.begins)
            located.ends[position] = cursor
        else:
            located.begins.add(cursor)
    return located


def to_json_marked(value: Any, **options: Any) -> str:
    """`json.dumps(value, **options)`, with the marks of a `MarkedDict` that is `value` or stands
    directly in it."""
    if isinstance(value, MarkedDict):
        return value.wrap(to_text(value, **options))
    if not isinstance(value, (dict, list)):
        return to_text(value, **options)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    marked = {key: item for key, item in items if isinstance(item, MarkedDict)}
    if not marked:
        return to_text(value, **options)
    shell: Any = value.copy()
    for key, item in marked.items():
        shell[key] = item.wrap("")
    written = {
        to_text(item.wrap(""), ensure_ascii=options.get("ensure_ascii", True)): item.wrap(
            to_text(item, **options)
        )
        for item in marked.values()
    }
    return _STAND_IN.sub(lambda match: written.get(match[0], match[0]), to_text(shell, **options))


def _split(marked: str, marks: PrivateMarks) -> tuple[list[str], list[tuple[Position, int]]]:
    """The text between the marks, and the marks between the texts."""
    pieces, found, start = [], [], 0
    for match in PRIVATE.finditer(marked):
        meaning = marks.meaning.get(match[0])
        if meaning is None:
            continue
        pieces.append(marked[start : match.start()])
        found.append(meaning)
        start = match.end()
    pieces.append(marked[start:])
    return pieces, found


def _match(text: str, cursor: int, piece: str, following: str, inside: bool) -> int | None:
    """Number of characters of `text` at `cursor` that are `piece`, or `piece` trimmed if it is
    `inside` content; None if neither."""
    if text.startswith(piece, cursor) and text.startswith(following, cursor + len(piece)):
        return len(piece)
    if inside:
        for trimmed in (
            piece.strip(),
            piece.strip("\n"),
            piece.rstrip(),
            piece.rstrip("\n"),
            piece.lstrip(),
            piece.lstrip("\n"),
        ):
            if text.startswith(trimmed, cursor) and text.startswith(
                following, cursor + len(trimmed)
            ):
                return len(trimmed)
    return None
