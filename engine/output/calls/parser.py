"""Finds calls in an answer as it streams: text in pieces in, text and calls out. Knows no tokens.

What is promised, however the answer is cut into pieces:

- no part of a tag is ever shown as text: what may become one is held back until it is certain;
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
from engine.prompt.call_format import CallFormat

_BETWEEN: Final = re.compile(r"[\s,;\]}]*")
_NAMED: Final = re.compile(
    r"([\w.\-]++)\s*+(?:\[CALL_ID\]\s*+[\w\-]*+\s*+)?(?:\[ARGS\])?\s*+(?=\{)"
)
_NAMED_SO_FAR: Final = re.compile(r"[\w.\-]{1,128}+\s*+(?:\[[\w\-\]\[\s]{0,128})?")
_BLANK_LINE: Final = re.compile(r"\n[ \t]*\Z")


class CallParser:
    """Reads one answer to a prompt that offered `tools`; owned by one sequence.

    Objects without a tag are calls only if they name one of `tools`. Tagged calls are passed on
    whatever they name: who called a tool that there is not should be told so. Only of those
    `barred` nothing is a call, tagged or not.
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
        self._read: Callable[[list[CallEvent]], bool] = self._text
        self._held = ""
        self._opened = ""
        self._is_blank = True
        self._is_tagged = False
        self._is_list = False
        self._object = ObjectScan()
        self._value = ValueScan()

    def push(self, text: str) -> list[CallEvent]:
        """What became certain with more of the answer."""
        self._held += text
        out: list[CallEvent] = []
        while self._held and self._read(out):
            pass
        return out

    def end(self, *, cut: bool) -> list[CallEvent]:
        """What is left now that no more comes. `cut`: the answer was broken off, so half a tag or
        half a head is no text."""
        out: list[CallEvent] = []
        held, self._held = self._held, ""
        if self._is_in_call:
            return out
        if self._read == self._after:
            self._say("" if cut or not held.strip(" \t\r\n,;]}") else self._behind(held), out)
        elif not cut:
            self._say(self._opened + held, out)
        elif self._read == self._text:
            whole = held[: self._num_whole(held)]
            self._say("" if self._is_blank and whole != held and whole.isspace() else whole, out)
        return out

    @property
    def _is_in_call(self) -> bool:
        return self._read == self._arguments or (self._read == self._call and self._object.begun)

    # One method per state: takes what it can from what is held, and says whether there may be
    # more to take.

    def _text(self, out: list[CallEvent]) -> bool:
        found = (self._opening_at_start if self._is_blank else self._opening).search(self._held)
        if found is None:
            border = self._num_certain(self._held)
            self._say(self._held[:border], out)
            self._held = self._held[border:]
            return False
        before = self._held[: found.start()]
        if not (self._is_blank and before.isspace()):
            self._say(before, out)
        self._open(found[0], found.end(), tagged=found[0].strip() != "")
        return True

    def _body(self, out: list[CallEvent]) -> bool:
        """Behind a tag."""
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
            self._value, self._read = ValueScan(), self._arguments
        elif self._form.is_named and _NAMED_SO_FAR.fullmatch(body):
            return False
        else:
            self._give_back(out)
        return True

    def _call(self, out: list[CallEvent]) -> bool:
        """Inside an object."""
        num = self._object.feed(self._held, 0, out)
        self._opened = "" if self._object.begun else self._opened + self._held[:num]
        self._held = self._held[num:]
        if self._object.progress is ScanState.OPEN:
            return False
        if self._object.progress is ScanState.BROKEN and not self._object.begun:
            self._give_back(out)
            return True
        self._opened, self._read = "", self._after
        return True

    def _arguments(self, out: list[CallEvent]) -> bool:
        """Inside the arguments of a call whose name stands in front of them."""
        num = self._value.feed(self._held, 0)
        if num:
            out.append(CallArguments(self._held[:num]))
        self._held = self._held[num:]
        if self._value.progress is ScanState.OPEN:
            return False
        self._read = self._after
        return True

    def _after(self, out: list[CallEvent]) -> bool:
        """Behind a call: its closing tag, another call, or text."""
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
            self._held = rest if is_call else self._behind(self._held)
            self._is_blank, self._read = True, self._text
        return True

    # Moves ----------------------------------------------------------------------------------------

    def _open(self, opened: str, end: int, *, tagged: bool) -> None:
        self._opened, self._held, self._is_list = opened, self._held[end:], False
        if tagged:
            self._is_tagged, self._read = True, self._body
        else:
            self._begin_object(0, tagged=False)

    def _begin_object(self, num_space: int, *, tagged: bool) -> None:
        self._opened += self._held[:num_space]
        self._held = self._held[num_space:]
        self._object = ObjectScan(None if tagged else self._tools, self._barred)
        self._is_tagged, self._read = tagged, self._call

    def _give_back(self, out: list[CallEvent]) -> None:
        """What was taken for a call is text."""
        self._say(self._opened, out)
        self._opened, self._is_tagged, self._read = "", False, self._text

    def _behind(self, text: str) -> str:
        """The text behind a call, without the bracket that closes a list of calls."""
        text = text.lstrip()
        return text[1:].lstrip() if self._is_list and text.startswith("]") else text

    def _say(self, text: str, out: list[CallEvent]) -> None:
        if text:
            out.append(Text(text))
            self._is_blank = False

    def _num_certain(self, text: str) -> int:
        """How many characters of `text` cannot become a call, or the newline in front of one."""
        num = self._num_whole(text)
        blank = _BLANK_LINE.search(text, 0, num) if self._form.bare else None
        if blank is not None:
            num = blank.start()
        elif num and text[num - 1] == "\n":
            num -= 1
        return 0 if self._is_blank and (not num or text[:num].isspace()) else num

    def _num_whole(self, text: str) -> int:
        """How many characters of `text` come before what may be half a tag at its end."""
        longest = max(len(tag) for tag in self._form.opens) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        halves = (n for n in lengths if any(tag.startswith(text[-n:]) for tag in self._form.opens))
        return len(text) - next(halves, 0)
