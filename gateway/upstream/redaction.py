"""Takes an upstream's key out of its answers, which go on in pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MASK: Final = "[redacted]"

FEWEST: Final = 4
"""Characters of a key that is looked for in errors; a shorter one is found everywhere."""

FEWEST_IN_ANSWERS: Final = 20
"""The same for answers that are no error: servers without keys are given words such as `EMPTY`,
and a model may well write one."""


class Redaction:
    """One answer without `key`, as it stands or with JSON's escapes. Bytes that may be the
    beginning of one are held back until more is known."""

    def __init__(self, key: str, status: int) -> None:
        fewest = FEWEST if status >= 400 else FEWEST_IN_ANSWERS
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        forms = {key, escaped, escaped.replace("/", "\\/")} if len(key) >= fewest else set()
        self._forms = sorted((form.encode() for form in forms), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._forms)))
        self._held = b""

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The fields of the answer's head."""
        if not self._forms:
            return dict(headers)
        plain = [form.decode() for form in self._forms]
        cleaned = dict(headers)
        for form in plain:
            cleaned = {name: value.replace(form, MASK) for name, value in cleaned.items()}
        return cleaned

    def take(self, piece: bytes) -> bytes:
        """The bytes that can go on by now; none where all of them are held back."""
        if not self._forms:
            return piece
        data = self._pattern.sub(MASK.encode(), self._held + piece)
        begin = min(_begin(data, form) for form in self._forms)
        self._held = data[begin:]
        return data[:begin]

    def rest(self) -> bytes:
        """The bytes held back at the answer's end."""
        held, self._held = self._held, b""
        return held


def _begin(data: bytes, form: bytes) -> int:
    """The place in `data` from where on it may be the beginning of `form`; its end: nowhere."""
    at = data.find(form[:1], max(0, len(data) - len(form) + 1))
    while at >= 0:
        if form.startswith(data[at:]):
            return at
        at = data.find(form[:1], at + 1)
    return len(data)
