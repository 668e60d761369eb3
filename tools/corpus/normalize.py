"""A record as lines of text in which only ids and times are left out, by the tables below.

`streams` makes a stream independent of how fast it was read.

Ids become numbers in the order in which a record first says them, so that one id in two places must
stay one id. Most ids and all dates in bodies are the same on every run as they are: a request's id
is given by its client, and the clock is the test's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tools.corpus.steps import Headers, Record, Sent
from tools.corpus.streams import settled

IDS: Final = (
    (
        "uuid",
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b"),
    ),
    ("hex", re.compile(r"(?<![0-9a-f])[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])")),
    ("response", re.compile(r"(?<=_)[0-9a-f]{48}(?![0-9a-f])")),
    ("batch", re.compile(r"\bmsgbatch_[0-9a-f]{24}\b")),
)
"""UUIDv7 of requests that named themselves badly or not at all, with hyphens and without; stored
responses and their items; batches."""

TIMES: Final = (
    (r"dur=<ms>", re.compile(r"\bdur=\d+\.\d\b")),
    (
        r"\1<time>",
        re.compile(r'("\w+(?:_seconds_total|_latency_s|_bandwidth_nbytes_per_s)":)[0-9.e+-]+'),
    ),
    (r"\1<steps>", re.compile(r'("engine_steps_total":)[0-9.]+')),
    (r"\1<disk>", re.compile(r'("free_nbytes":)\d+')),
)
"""Server-Timing; durations and steps that an engine counts (a step may begin before an answer's end
is known); what is free on the machine."""

PLACES: Final = (
    ("<home>", re.compile(r"/[^\s\"]*/pcg-corpus-[^/\s\"]+")),
    ("127.0.0.1:<port>", re.compile(r"\b127\.0\.0\.1:\d{4,5}\b")),
)
"""Where the recording was made."""

METRIC_TIMES: Final = re.compile(
    r"(?m)^((?:\w*_seconds(?:_sum|_total|_bucket)?|\w+_created|process_\w+|python_\w+"
    r"|pcg_engine_steps_total|pcg_event_loop_lag_seconds_count"
    r"|\w+_per_second)(?:\{[^}\n]*\})?) \S+$"
)
"""Samples of Prometheus that are durations or tell of the process; of histograms of durations the
counts stay."""

TIME_HEADERS: Final = frozenset({"date"})


@dataclass(slots=True)
class Names:
    """The numbers of one record's ids."""

    known: dict[str, int]

    def number(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: (
            f"<{kind}:{self.known.setdefault(match[0].replace('-', ''), len(self.known) + 1)}>"
        )


def lines(record: Record) -> list[str]:
    """The request that was sent and the whole answer. Bodies are cut at commas and events, and lose
    nothing by it."""
    names = Names({})
    shown = [f"{record.name}: {record.request.method} {normal(record.request.path, names)}"]
    shown.append(f"HTTP {record.status}")
    body = normal(settled(record.body) if _is_stream(record) else record.body, names)
    shown += _headers(record.headers, names, body_changed=body != record.body)
    shown += ["", *_cut(body)]
    for sent in record.passed:
        shown += [
            "",
            f"to an upstream: {sent.method} {normal(sent.path, names)}",
            *_passed(sent, names),
        ]
    return shown


def normal(text: str, names: Names) -> str:
    """The text without ids, times and places."""
    for kind, pattern in IDS:
        text = pattern.sub(names.number(kind), text)
    for left, pattern in (*TIMES, *PLACES):
        text = pattern.sub(left, text)
    return METRIC_TIMES.sub(r"\1 <time>", text) if text.startswith("# HELP") else text


def _is_stream(record: Record) -> bool:
    return any(
        name.lower() == "content-type" and "event-stream" in value for name, value in record.headers
    )


def _headers(headers: Headers, names: Names, *, body_changed: bool) -> list[str]:
    """In the order of the wire. The length of a body that has ids of another length is one of
    them."""
    told = []
    for name, value in headers:
        timed = name.lower() in TIME_HEADERS or (body_changed and name.lower() == "content-length")
        told.append(f"{name}: {'<left out>' if timed else normal(value, names)}")
    return told


def _passed(sent: Sent, names: Names) -> list[str]:
    return [*_headers(sent.headers, names, body_changed=False), "", *_cut(normal(sent.body, names))]


def _cut(body: str) -> list[str]:
    """Joined without separator between them, the pieces are the body but for how its lines end."""
    return re.sub(r"(?<=[,{\[])(?=[\"{\[])", "\n", body).split("\n")
