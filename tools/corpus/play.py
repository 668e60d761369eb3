"""Sends the steps of one stage, one after the other, and records what comes back.

Knows HTTP and no format.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tools.corpus.steps import Record, Sent, Step, as_text

TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.02
FIRST_S: Final = 1_796_000_000.0
"""Where the gateway's clock stands at the start of every stage: 2026-11-30."""

_VARIABLE: Final = re.compile(r"\{\{(\w+)\}\}")


class NeverCame(Exception):
    """An answer that a step waits for did not come in time."""


class Player:
    """One client of one gateway, whose clock is the file `clock`. `passed` tells what upstreams got
    since it was last asked."""

    def __init__(self, base_url: str, clock: Path, passed: Callable[[], Sequence[Sent]]) -> None:
        self._host = urlsplit(base_url).netloc
        self._clock = clock
        self._passed = passed
        self._now_s = float(clock.read_text(encoding="utf-8"))
        self._kept: dict[str, str] = {}

    def play(self, stage: str, steps: Sequence[Step]) -> Iterator[Record]:
        """The records of all steps, in their order."""
        for step in steps:
            if step.after_s:
                self._now_s += step.after_s
                write_clock(self._clock, self._now_s)
            yield self._step(f"{stage}/{step.name}", step)

    def _step(self, name: str, step: Step) -> Record:
        request = self._request(name, step)
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            record = self._ask(name, request)
            if step.until is None or _found(record.body, step.until[0]) == step.until[1]:
                break
            if time.monotonic() > deadline_s:
                raise NeverCame(f"{name}: {step.until} in {record.body[:400]}")
            time.sleep(POLL_S)
        for variable, path in step.keep.items():
            found = _found(record.body, path)
            if found is None:
                raise NeverCame(f"{name}: nothing at {path} in {record.body[:1000]}")
            self._kept[variable] = found if isinstance(found, str) else json.dumps(found)
        return record

    def _request(self, name: str, step: Step) -> tuple[Sent, bytes | None]:
        defaults: dict[str, str | None] = {"x-request-id": name.replace("/", "-")}
        if step.body is None:
            body = None
        elif isinstance(step.body, bytes):
            body = step.body
        else:
            body = json.dumps(self._filled(step.body), ensure_ascii=False).encode()
            defaults["content-type"] = "application/json"
        headers = defaults | dict(step.headers)
        told = tuple(
            (key, self._filled(value)) for key, value in headers.items() if value is not None
        )
        return Sent(step.method, self._filled(step.path), told, as_text(body or b"")), body

    def _ask(self, name: str, request: tuple[Sent, bytes | None]) -> Record:
        sent, body = request
        connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        try:
            connection.request(sent.method, sent.path, body, dict(sent.headers))
            answer = connection.getresponse()
            content = answer.read()
            headers = tuple(answer.getheaders())
            return Record(
                name, sent, answer.status, headers, as_text(content), tuple(self._passed())
            )
        finally:
            connection.close()

    def _filled(self, value: Any) -> Any:
        """With everything kept in the place of its name."""
        match value:
            case str():
                return _VARIABLE.sub(lambda match: self._kept[match[1]], value)
            case Mapping():
                return {key: self._filled(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self._filled(inner) for inner in value]
        return value


def write_clock(path: Path, now_s: float) -> None:
    """Sets the time of the gateway that reads this file, at once."""
    draft = path.with_suffix(".draft")
    draft.write_text(repr(now_s), encoding="utf-8")
    draft.replace(path)


def _found(body: str, path: str) -> Any:
    """What stands at a path like `data/0/id`, `#data` for a length; of a stream in its last event.
    None where nothing does."""
    events = [
        line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")
    ]
    try:
        value = json.loads(events[-1] if events else body)
        for key in path.split("/"):
            if key.startswith("#"):
                return len(value[key[1:]])
            value = value[int(key)] if isinstance(value, list) else value[key]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return value
