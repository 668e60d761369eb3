"""An event stream in a form that does not depend on how fast it was read.

Deltas that were ready together leave as one event, and which of several choices is told first is a
matter of time. So the events of each choice are put side by side, and runs of deltas become one
delta; everything else stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

TEXT: Final = re.compile(
    r'"(?:delta|text|partial_json|thinking|content|reasoning_content|reasoning|arguments)":"((?:[^"\\]|\\.)*)"'
)
"""Where a delta of any format holds its text."""

IS_DELTA: Final = re.compile(
    r"event: (?:content_block_delta|response\.\S+\.delta)\n|"
    r'"(?:chat\.completion\.chunk|text_completion)".*"choices":\[\{.*"finish_reason":null'
)
SEQUENCE: Final = re.compile(r'(?<="sequence_number":)\d+')
CALL: Final = re.compile(
    r'"id":"[^"]*","type":"function",(?="function")|"name":"[^"]*",(?="arguments")'
)
"""What the first delta of a call has in Chat Completions, and may have arguments behind."""
CHOICE: Final = re.compile(r'"choices":\[\{"index":(\d+)')
LOGPROBS: Final = '"logprobs":'
OPENING, CLOSING = "[{", "]}"


@dataclass(frozen=True, slots=True)
class Event:
    """`grown` is what grows from delta to delta; it stands between the parts of `frame`."""

    frame: tuple[str, ...]
    grown: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(
            part for pair in zip(self.frame, (*self.grown, ""), strict=True) for part in pair
        )


def settled(body: str) -> str:
    """The stream with its choices in order and every run of deltas as one."""
    *events, rest = body.split("\n\n")
    told: list[Event] = []
    num_joined = 0
    for text in _in_order(events):
        event = _read(_renumbered(text, num_joined))
        if told and event.grown and _frame(event) == _frame(told[-1]):
            told[-1] = _joined(told[-1], event)
            num_joined += 1
        else:
            told.append(event)
    return "".join(f"{event}\n\n" for event in told) + rest


def _in_order(events: list[str]) -> Iterator[str]:
    """The events of each choice side by side, between events that belong to none."""
    for is_chosen, run in groupby(events, key=lambda event: CHOICE.search(event) is not None):
        told = list(run)
        yield from sorted(told, key=_choice) if is_chosen else told


def _choice(event: str) -> int:
    found = CHOICE.search(event)
    return int(found[1]) if found else 0


def _renumbered(event: str, num_joined: int) -> str:
    return SEQUENCE.sub(lambda match: str(int(match[0]) - num_joined), event, count=1)


def _frame(event: Event) -> tuple[str, ...]:
    """Without what is another in every delta, or in the first one only."""
    return tuple(CALL.sub("", SEQUENCE.sub("#", part)) for part in event.frame)


def _joined(one: Event, other: Event) -> Event:
    """Texts one after the other, lists with a comma between."""
    text, *lists = zip(one.grown, other.grown, strict=True)
    return Event(one.frame, ("".join(text), *(",".join(filter(None, pair)) for pair in lists)))


def _read(event: str) -> Event:
    """A delta in parts: its text, and the insides of the lists of its log-probabilities. Anything
    else is one part."""
    text = TEXT.search(event) if IS_DELTA.search(event) else None
    if text is None:
        return Event((event,), ())
    spans = [text.span(1), *_lists(event, text.end())]
    starts = (0, *(end for _, end in spans))
    ends = (*(start for start, _ in spans), len(event))
    return Event(
        tuple(event[start:end] for start, end in zip(starts, ends, strict=True)),
        tuple(event[start:end] for start, end in spans),
    )


def _lists(event: str, after: int) -> Iterator[tuple[int, int]]:
    """Where the insides of the outermost lists are, in the value of `logprobs`."""
    place = event.find(LOGPROBS, after)
    if place < 0:
        return
    depth = num_lists = begun = 0
    for match in re.finditer(
        r'"(?:[^"\\]|\\.)*"|[\[\]{}]|[^\[\]{}"]+', event[place + len(LOGPROBS) :]
    ):
        at = place + len(LOGPROBS) + match.start()
        if match[0] in OPENING:
            depth += 1
            if match[0] == "[" and not num_lists:
                begun = at + 1
            num_lists += match[0] == "["
        elif match[0] in CLOSING:
            depth -= 1
            num_lists -= match[0] == "]"
            if match[0] == "]" and not num_lists:
                yield begun, at
        if depth <= 0:
            return
