"""The first difference between two prompts: its place and its kind.

Knows no tokens, no rules and no money.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Literal, TypeAlias

import msgspec

from engine.prompt.numerals import in_json
from engine.prompt.types import (
    Part,
    Position,
    Prompt,
    Role,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
    num_common,
    unmarked,
)

Kind: TypeAlias = Literal[
    "clock",
    "nonce",
    "tool_order",
    "key_order",
    "whitespace",
    "unicode",
    "image",
    "removed",
    "inserted",
    "role",
    "text",
]

_CLOCK: Final = re.compile(
    r"\d{1,2}:\d{2}(:\d{2})?|\d{4}-\d{2}-\d{2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|\b1[5-9]\d{8}(\d{3})?\b"
    r"|\b(mon|tues|wednes|thurs|fri|satur|sun)day\b"
    r"|\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* \d{1,2}\b",
    re.IGNORECASE,
)
_NONCE: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[a-z_-]*\d)(?=[\d_-]*[a-z])[0-9a-z_-]{5,}",
    re.IGNORECASE,
)
"""A UUID, or a word of at least five letters and digits with some of each."""

_MEDIA: Final = re.compile(r"\[(image|document) [^\]]+\]")
_AROUND: Final = 24
"""Characters on either side of a difference by which its kind is recognized."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position, in wire order, that the prompts do not share. `character` counts within
    its text or its JSON."""

    position: Position
    character: int
    kind: Kind
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class _Place:
    """`exact` is the content as bytes, which tell the order of JSON keys too."""

    position: Position
    role: Role | None
    content: Tool | Part
    exact: bytes


def first_difference(a: Prompt, b: Prompt) -> Difference | None:
    """None where the later prompt `b` only goes on, or is the same. Marks are no difference."""
    old, new = _places(a), _places(b)
    for i, (before, after) in enumerate(zip_longest(old, new)):
        if before is None:
            return None
        if after is None:
            return Difference(before.position, 0, "removed", _text(before.content), "")
        if not _same(before, after) or before.position.level != after.position.level:
            return _described(old, new, i)
    return None


def excerpt(text: str, character: int) -> str:
    """The text around a character."""
    return text[max(0, character - _AROUND) : character + _AROUND]


def _described(old: list[_Place], new: list[_Place], i: int) -> Difference:
    before, after = _text(old[i].content), _text(new[i].content)
    kind, character = _kind(old, new, i), num_common(before, after)
    position = (
        new[i].position
        if kind == "inserted" or old[i].position.level == new[i].position.level
        else old[i].position
    )
    return Difference(
        position,
        0 if kind in ("removed", "inserted", "tool_order") else character,
        kind,
        before,
        after,
    )


def _kind(old: list[_Place], new: list[_Place], i: int) -> Kind:
    one, other = old[i], new[i]
    if _moved_tools(old, new):
        return "tool_order"
    rest_old, rest_new = old[i + 1 : i + 2], new[i + 1 : i + 2]
    if one.position.level != other.position.level:
        return "removed" if one.position.order < other.position.order else "inserted"
    if one.role == other.role:
        kind = _kind_of_text(one.content, other.content)
        if kind != "text":
            return kind
    if rest_old and _same(rest_old[0], other):
        return "removed"
    if rest_new and _same(one, rest_new[0]):
        return "inserted"
    return "role" if one.role != other.role else "text"


def _kind_of_text(one: Tool | Part, other: Tool | Part) -> Kind:
    before, after = _text(one), _text(other)
    if bool(_MEDIA.search(before)) != bool(_MEDIA.search(after)):
        return "image"
    if _sorted(one) == _sorted(other):
        return "key_order"
    if _spaceless(before) == _spaceless(after):
        return "whitespace"
    if unicodedata.normalize("NFC", before) == unicodedata.normalize("NFC", after):
        return "unicode"
    start = num_common(before, after)
    if _touches(_CLOCK, before, start) and _touches(_CLOCK, after, start):
        return "clock"
    if _touches(_NONCE, before, start) and _touches(_NONCE, after, start):
        return "nonce"
    return "text"


def _touches(pattern: re.Pattern[str], text: str, character: int) -> bool:
    """Whether a match of the pattern holds the character."""
    begin = max(0, character - 2 * _AROUND)
    around = text[begin : character + 2 * _AROUND]
    return any(
        match.start() <= character - begin < match.end() for match in pattern.finditer(around)
    )


def _moved_tools(old: list[_Place], new: list[_Place]) -> bool:
    """Whether both have the same tools, otherwise ordered."""
    before, after = (
        [p.exact for p in places if p.position.level == "tools"] for places in (old, new)
    )
    return before != after and sorted(before) == sorted(after)


def _same(one: _Place, other: _Place) -> bool:
    return (one.role, one.exact) == (other.role, other.exact)


def _sorted(content: Tool | Part) -> bytes:
    """Equal for contents that differ in the order of JSON keys alone."""
    return msgspec.json.encode(content, enc_hook=in_json, order="deterministic")


def _spaceless(text: str) -> str:
    return "".join(text.split())


def _text(content: Tool | Part) -> str:
    """The text that is compared character by character."""
    match content:
        case TextPart() | ThinkingPart() | ToolResultPart():
            return content.text
        case ToolCallPart():
            return msgspec.json.encode(content.arguments, enc_hook=in_json).decode()
        case Tool():
            return msgspec.json.encode(
                [content.name, content.description, content.parameters], enc_hook=in_json
            ).decode()


def _places(prompt: Prompt) -> list[_Place]:
    """Every position with its content, without its mark."""
    found = []
    for position, part in prompt.parts():
        bare = unmarked(part)
        found.append(
            _Place(
                position,
                prompt.role_at(position),
                bare,
                msgspec.json.encode(bare, enc_hook=in_json),
            )
        )
    return found
