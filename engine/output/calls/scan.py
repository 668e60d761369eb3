"""Follows JSON as it streams: where a value ends, and the name and the arguments in an object.
Knows no tags.

A scan reads as much of a text as belongs to it and returns where it stopped. It is lenient about
the inside of a value, which is passed on as the model wrote it, and strict about everything that
distinguishes a call from other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from enum import Enum, auto
from typing import Final

from engine.output.calls.events import CallArguments, CallBegin, CallEvent


class ScanState(Enum):
    """Progress of a scan. BROKEN: the next character cannot belong to it."""

    OPEN = auto()
    DONE = auto()
    BROKEN = auto()


_MARK: Final = re.compile(r"\S")
_SCALAR: Final = re.compile(r"[\w+.\-]*")
_IN_STRING: Final = re.compile(r'["\\]')
_OUTSIDE: Final = re.compile(r'["{}\[\]]|[^\s\w+.,:\-]')


class ValueScan:
    """One JSON value from its first character on."""

    def __init__(self) -> None:
        self.progress = ScanState.OPEN
        self.first = ""
        self._length = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def is_container(self) -> bool:
        """True for an object or a list; known from the first character on."""
        return self.first in ("{", "[")

    def feed(self, text: str, start: int) -> int:
        """The index behind the value's part of `text[start:]`."""
        at = start
        if not self.first and at < len(text):
            self.first = text[at]
        if not self.is_container and self.first != '"':
            return self._scalar(text, at)
        while at < len(text) and self.progress is ScanState.OPEN:
            at = self._string(text, at) if self._in_string else self._structure(text, at)
        return at

    def _scalar(self, text: str, at: int) -> int:
        """Numbers and words have no end of their own: what follows ends them."""
        match = _SCALAR.match(text, at)
        end = at if match is None else match.end()
        self._length += end - at
        if end < len(text):
            self.progress = ScanState.DONE if self._length else ScanState.BROKEN
        return end

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _IN_STRING.search(text, at)
        if match is None:
            return len(text)
        if match[0] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self._end_if_closed()
        return match.end()

    def _structure(self, text: str, at: int) -> int:
        match = _OUTSIDE.search(text, at)
        if match is None:
            return len(text)
        match match[0]:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                self._end_if_closed()
            case _:
                self.progress = ScanState.BROKEN
                return match.start()
        return match.end()

    def _end_if_closed(self) -> None:
        if self._depth == 0:
            self.progress = ScanState.DONE


_NAMES: Final = ("name", "function")
_ARGUMENTS: Final = ("arguments", "parameters")
_MEMBERS: Final = frozenset((*_NAMES, *_ARGUMENTS, "type", "id"))


class ObjectScan:
    """One object with a name and arguments, in any order; the call begins when its name is known.

    With `tools`, an object that names none of them or begins with another member than calls have is
    BROKEN. Arguments that come before the name wait for it; arguments written as a string are
    unpacked; none at all are an empty object. One that names a tool in `barred` is BROKEN in any
    case.
    """

    def __init__(self, tools: Container[str] | None = None, barred: Container[str] = ()) -> None:
        self.progress = ScanState.OPEN
        self.begun = False
        self._tools = tools
        self._barred = barred
        self._expected = "{"
        self._key = ""
        self._read = ""
        self._value: ValueScan | None = None
        self._arguments = ""
        self._has_arguments = False

    def feed(self, text: str, start: int, out: list[CallEvent]) -> int:
        """The index behind the object's part of `text[start:]`; events of the call go to `out`."""
        at = start
        while at < len(text) and self.progress is ScanState.OPEN:
            if self._value is not None:
                at = self._feed_value(self._value, text, at, out)
            elif (mark := _MARK.search(text, at)) is None:
                return len(text)
            else:
                at = self._structure(text, mark.start(), out)
        return at

    def _structure(self, text: str, at: int, out: list[CallEvent]) -> int:
        """One character between values. Values begin where they are expected and are read by a scan
        of their own."""
        mark = text[at]
        if self._expected == "value" or (self._expected in ("key", "key or }") and mark == '"'):
            self._value, self._read = ValueScan(), ""
            return at
        following = {"{": "key or }", ":": "value", ",": "key"}.get(mark)
        if mark == "}" and self._expected in (",", "key or }"):
            self._close(out)
        elif following is not None and self._expected == mark:
            self._expected = following
        else:
            self.progress = ScanState.BROKEN
            return at
        return at + 1

    def _feed_value(self, value: ValueScan, text: str, at: int, out: list[CallEvent]) -> int:
        end = value.feed(text, at)
        piece = text[at:end]
        if self._is_streamed(value):
            self._emit_arguments(piece, out)
        else:
            self._read += piece
        if value.progress is ScanState.BROKEN:
            self.progress = ScanState.BROKEN
        elif value.progress is ScanState.DONE:
            self._end_value(value, out)
            self._value = None
        return end

    def _is_streamed(self, value: ValueScan) -> bool:
        return (
            self._expected == "value"
            and self._key in _ARGUMENTS
            and not self._has_arguments
            and value.is_container
        )

    def _end_value(self, value: ValueScan, out: list[CallEvent]) -> None:
        """A whole value has been read: a member's key, or its value."""
        if self._expected != "value":
            self._key, self._expected = _string(self._read) or "", ":"
            if self._tools is not None and not self.begun and self._key not in _MEMBERS:
                self.progress = ScanState.BROKEN
            return
        self._expected = ","
        if self._key in _NAMES and not self.begun:
            self._name(_string(self._read), out)
        elif self._key in _ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            if not value.is_container:
                self._emit_arguments(_unpacked(self._read), out)

    def _name(self, name: str | None, out: list[CallEvent]) -> None:
        if not name:
            return
        if name in self._barred or (self._tools is not None and name not in self._tools):
            self.progress = ScanState.BROKEN
            return
        self.begun = True
        out.append(CallBegin(name))
        waiting, self._arguments = self._arguments, ""
        self._emit_arguments(waiting, out)

    def _emit_arguments(self, arguments: str, out: list[CallEvent]) -> None:
        if not self.begun:
            self._arguments += arguments
        elif arguments:
            out.append(CallArguments(arguments))

    def _close(self, out: list[CallEvent]) -> None:
        if not self.begun:
            self.progress = ScanState.BROKEN
            return
        self.progress = ScanState.DONE
        if not self._has_arguments:
            self._emit_arguments("{}", out)


def _string(text: str) -> str | None:
    """The string that is written as JSON in `text`; None if it is none, or half a surrogate pair is
    in it: that is no text.

    What does not begin as a string is not decoded at all, as it may be nested deeper than the
    decoder follows.
    """
    if not text.startswith('"'):
        return None
    try:
        value = json.loads(text, strict=False)
        value.encode()
    except ValueError:
        return None
    return str(value)


def _unpacked(text: str) -> str:
    """Arguments that are no object: a string is taken for what it quotes; null and blank strings
    are no arguments."""
    quoted = "" if text == "null" else _string(text)
    if quoted is None:
        return text
    return quoted if quoted.strip() else "{}"
