"""Finds calls in an answer as it streams: text in pieces in, text and calls out. Knows no tokens.

However the answer is cut into pieces:

- no part of a tag is ever text: characters that may become one are held back until it is certain;
- a call begins as soon as its name is certain. What does not lead to a name is text again, as it
  was written; what follows a name is the call's arguments as they were written, whole JSON or not;
- a newline in front of a call and the space behind it are not text, as templates write them
  themselves; nor is the bracket that closes a list of calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from engine.output.calls.events import CallArguments, CallBegin, CallEvent, Text
from engine.output.calls.scan import ObjectScan, ScanState, ValueScan
from engine.output.partial import num_partial
from engine.prompt.call_format import CallFormat

_BETWEEN: Final = re.compile(r"[\s,;\]}]*")
_NAMED: Final = re.compile(
    r"([\w.\-]++)\s*+(?:\[CALL_ID\]\s*+[\w\-]*+\s*+)?(?:\[ARGS\])?\s*+(?=\{)"
)
_NAMED_SO_FAR: Final = re.compile(r"[\w.\-]{1,128}+\s*+(?:\[[\w\-\]\[\s]{0,128})?")
_BLANK_LINE: Final = re.compile(r"\n[ \t]*\Z")


class CallParser:
    """Finds the calls in one answer to a prompt that offered `tools`; owned by one sequence.

    An object without a tag is a call only if it names one of `tools`. A tagged call is passed on
    whatever it names, so that the client can answer that there is no such tool. A call of one of
    the `barred` tools is text, tagged or not.
    """

    def __init__(self, form: CallFormat, tools: Iterable[str], barred: Iterable[str] = ()) -> None:
        self._form = form
        self._tools = frozenset(tools)
        self._barred = frozenset(barred)
        tags = "|".join(re.escape(tag) for tag in form.opens)
        self._opening = re.compile(rf"\n?(?:{tags})" + (r"|\n[ \t]*(?=\{)" if form.bare else ""))
        self._opening_at_start = (
            re.compile(rf"\n?(?:{tags})|(?:\A|\n)[ \t]*(?=\{{)") if form.bare else self._opening
        )
        self._read: Callable[[list[CallEvent]], bool] = self._in_text
        self._held = ""
        self._opened = ""
        self._is_blank = True
        self._is_tagged = False
        self._is_list = False
        self._object = ObjectScan()
        self._value = ValueScan()

    def push(self, text: str) -> list[CallEvent]:
        """Feed more of the answer; returns the events that are certain now."""
        self._held += text
        out: list[CallEvent] = []
        while self._held and self._read(out):
            pass
        return out

    def end(self, *, cut: bool) -> list[CallEvent]:
        """The rest of an answer that has ended; half a tag or half a head at the end of one that
        was `cut` off is left out."""
        out: list[CallEvent] = []
        held, self._held = self._held, ""
        if self._is_in_call:
            return out
        if self._read == self._behind_call:
            self._emit_text(
                "" if cut or not held.strip(" \t\r\n,;]}") else self._after_list(held), out
            )
        elif not cut:
            self._emit_text(self._opened + held, out)
        elif self._read == self._in_text:
            whole = held[: len(held) - num_partial(held, self._form.opens)]
            self._emit_text(
                "" if self._is_blank and whole != held and whole.isspace() else whole, out
            )
        return out

    @property
    def _is_in_call(self) -> bool:
        return self._read == self._in_arguments or (
            self._read == self._in_object and self._object.begun
        )

    # One method per state: takes what it can from the text held, and returns whether there may be
    # more to take.

    def _in_text(self, out: list[CallEvent]) -> bool:
        found = (self._opening_at_start if self._is_blank else self._opening).search(self._held)
        if found is None:
            border = self._num_certain(self._held)
            self._emit_text(self._held[:border], out)
            self._held = self._held[border:]
            return False
        before = self._held[: found.start()]
        if not (self._is_blank and before.isspace()):
            self._emit_text(before, out)
        self._open(found[0], found.end(), tagged=found[0].strip() != "")
        return True

    def _behind_tag(self, out: list[CallEvent]) -> bool:
        """State: behind a tag."""
        body = self._held.lstrip()
        if not body:
            return False
        num_space = len(self._held) - len(body)
        if body[0] == "{":
            self._begin_object(num_space, tagged=True)
        elif body[0] == "[" and not self._is_list:
            self._opened += self._held[: num_space + 1]
            self._held, self._is_list = body[1:], True
        elif self._form.is_named and (named := _NAMED.match(body)) and named[1] not in self._barred:
            out.append(CallBegin(named[1]))
            self._opened, self._held = "", body[named.end() :]
            self._value, self._read = ValueScan(), self._in_arguments
        elif self._form.is_named and _NAMED_SO_FAR.fullmatch(body):
            return False
        else:
            self._reject_call(out)
        return True

    def _in_object(self, out: list[CallEvent]) -> bool:
        """State: inside an object."""
        num = self._object.feed(self._held, 0, out)
        self._opened = "" if self._object.begun else self._opened + self._held[:num]
        self._held = self._held[num:]
        if self._object.progress is ScanState.OPEN:
            return False
        if self._object.progress is ScanState.BROKEN and not self._object.begun:
            self._reject_call(out)
            return True
        self._opened, self._read = "", self._behind_call
        return True

    def _in_arguments(self, out: list[CallEvent]) -> bool:
        """State: inside the arguments of a call whose name stands in front of them."""
        num = self._value.feed(self._held, 0)
        if num:
            out.append(CallArguments(self._held[:num]))
        self._held = self._held[num:]
        if self._value.progress is ScanState.OPEN:
            return False
        self._read = self._behind_call
        return True

    def _behind_call(self, out: list[CallEvent]) -> bool:
        """State: behind a call, where its closing tag, another call or text follows."""
        between = _BETWEEN.match(self._held)
        num_between = between.end() if between else 0
        rest = self._held[num_between:]
        close = self._form.close
        if close and rest.startswith(close):
            self._held, self._is_tagged = rest[len(close) :], False
        elif not rest or any(
            tag.startswith(rest) and tag != rest for tag in (close, *self._form.opens)
        ):
            return False
        elif rest[0] == "{" and (self._is_tagged or self._form.bare):
            self._begin_object(num_between, tagged=self._is_tagged)
        else:
            is_call = rest.startswith(self._form.opens)
            self._held = rest if is_call else self._after_list(self._held)
            self._is_blank, self._read = True, self._in_text
        return True

    # Moves ----------------------------------------------------------------------------------------

    def _open(self, opened: str, end: int, *, tagged: bool) -> None:
        self._opened, self._held, self._is_list = opened, self._held[end:], False
        if tagged:
            self._is_tagged, self._read = True, self._behind_tag
        else:
            self._begin_object(0, tagged=False)

    def _begin_object(self, num_space: int, *, tagged: bool) -> None:
        self._opened += self._held[:num_space]
        self._held = self._held[num_space:]
        self._object = ObjectScan(None if tagged else self._tools, self._barred)
        self._is_tagged, self._read = tagged, self._in_object

    def _reject_call(self, out: list[CallEvent]) -> None:
        """Emit what was taken for a call as text."""
        self._emit_text(self._opened, out)
        self._opened, self._is_tagged, self._read = "", False, self._in_text

    def _after_list(self, text: str) -> str:
        """The text behind a call, without the bracket that closes a list of calls."""
        text = text.lstrip()
        return text[1:].lstrip() if self._is_list and text.startswith("]") else text

    def _emit_text(self, text: str, out: list[CallEvent]) -> None:
        if text:
            out.append(Text(text))
            self._is_blank = False

    def _num_certain(self, text: str) -> int:
        """Number of characters of `text` that cannot become a call or the newline before one."""
        num = len(text) - num_partial(text, self._form.opens)
        blank = _BLANK_LINE.search(text, 0, num) if self._form.bare else None
        if blank is not None:
            num = blank.start()
        elif num and text[num - 1] == "\n":
            num -= 1
        return 0 if self._is_blank and (not num or text[:num].isspace()) else num
