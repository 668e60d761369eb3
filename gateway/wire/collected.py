"""Usage of one answer, collected from all of its events. Pure. Knows no format.

Most fields merge: the last value that is present wins. The fields of the prompt belong together,
so the last event that reports all of them, and adds up, replaces what came before: a gateway that
first reports a prompt as written and then as read would else be billed for it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.wire.reported import Fields, ReportedUsage, UsageFormat, count, merge


@dataclass(slots=True)
class CollectedUsage:
    """The usage objects of one answer, as one. Keeps one merged object, however many come."""

    format: UsageFormat
    _fields: dict[str, Any] = field(default_factory=dict)

    def add(self, usage: Fields) -> None:
        """Takes the next usage object. One whose prompt does not add up, or has no token, changes
        no prompt that does."""
        names = self.format.prompt
        prompt = {name: value for name, value in usage.items() if name in names}
        merge(self._fields, {name: value for name, value in usage.items() if name not in names})
        if repeats(self._fields, prompt):
            return
        known = {name: value for name, value in self._fields.items() if name in names}
        if self._adds_up(known) and self._contradicts(prompt):
            return
        merged: dict[str, Any] = {}
        merge(merged, known)
        drop_older(merged, prompt, self.format.splits)
        merge(merged, prompt)
        if self._adds_up(prompt) and (self._is_whole(prompt) or not self._adds_up(merged)):
            merged = {}
            merge(merged, prompt)
        for name in known:
            del self._fields[name]
        self._fields |= merged

    def read(self) -> ReportedUsage | None:
        """Tokens; None where nothing was reported of the prompt."""
        return self.format.read(self._fields)

    def _adds_up(self, prompt: Fields) -> bool:
        usage = self.format.read(prompt)
        return usage is not None and not usage.anomaly and usage.num_prompt > 0

    def _contradicts(self, prompt: Fields) -> bool:
        return self.format.read(prompt) is not None and not self._adds_up(prompt)

    def _is_whole(self, prompt: Fields) -> bool:
        """Whether it reports the cache as well as the prompt's total."""
        usage = self.format.read(prompt)
        return usage is not None and usage.cache_read is not None


def repeats(known: Fields, new: Fields) -> bool:
    """Whether every value of `new` that is present stands in `known` already."""
    for name, value in new.items():
        if isinstance(value, Mapping):
            inner = known.get(name)
            if not isinstance(inner, Mapping) or not repeats(inner, value):
                return False
        elif value is not None and known.get(name) != value:
            return False
    return True


def drop_older(known: dict[str, Any], new: Fields, splits: Mapping[str, str]) -> None:
    """Drops the splits of `known` that are older than their total in `new` and differ from it, and
    the totals that are older than their split."""
    for total, split in splits.items():
        parts, older_parts = new.get(split), known.get(split)
        if isinstance(parts, Mapping):
            known.pop(split, None)
            if count(new.get(total)) is None and known.get(total) != _sum(parts):
                known.pop(total, None)
        elif isinstance(older_parts, Mapping):
            tokens = count(new.get(total))
            if tokens is not None and tokens != _sum(older_parts):
                del known[split]
    for name, value in new.items():
        inner = known.get(name)
        if isinstance(value, Mapping) and isinstance(inner, dict):
            drop_older(inner, value, splits)


def _sum(parts: Fields) -> int:
    return sum(count(tokens) or 0 for tokens in parts.values())
