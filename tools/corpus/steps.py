"""One request of the corpus, what came back, and the file of both. Knows no gateway."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Headers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One request. `{{name}}` in path, headers and body stands for what an earlier step kept.

    `body` is sent as JSON, bytes as they are. A header of None is not sent, also where one is sent
    by default. `keep` maps names to paths into the JSON answer (`output/0/id`). The clock moves on
    by `after_s` first. `until` is such a path and the value to ask again for.
    """

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str | None] = field(default_factory=dict)
    keep: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    until: tuple[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it went over the wire; an upstream's too. Bodies that are no UTF-8 are
    `base64:...`."""

    method: str
    path: str
    headers: Headers
    body: str


@dataclass(frozen=True, slots=True)
class Record:
    """A request and its whole answer. `passed` is what upstreams got meanwhile."""

    name: str
    request: Sent
    status: int
    headers: Headers
    body: str
    passed: tuple[Sent, ...] = ()


def as_text(body: bytes) -> str:
    """Bytes as text that is equal only for equal bytes."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(body).decode()


def save(path: Path, records: Iterable[Record]) -> None:
    """One record a line."""
    lines = [json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")


def load(path: Path) -> list[Record]:
    """What `save` wrote."""
    with path.open(encoding="utf-8") as file:
        return [_record(json.loads(line)) for line in file]


def _record(fields: dict[str, Any]) -> Record:
    passed = tuple(_sent(sent) for sent in fields["passed"])
    return Record(
        fields["name"],
        _sent(fields["request"]),
        fields["status"],
        _headers(fields["headers"]),
        fields["body"],
        passed,
    )


def _sent(fields: dict[str, Any]) -> Sent:
    return Sent(fields["method"], fields["path"], _headers(fields["headers"]), fields["body"])


def _headers(pairs: list[list[str]]) -> Headers:
    return tuple((name, value) for name, value in pairs)
