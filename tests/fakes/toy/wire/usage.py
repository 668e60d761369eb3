"""Token counts in the toy's words, told to clients and read from upstreams."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.wire.reported import Fields, ReportedUsage, UsageCounts, UsageFormat, count, objects
from policies.pricing import Usage


def toy_usage(usage: Usage) -> dict[str, int]:
    return {
        "new": usage.input,
        "remembered": usage.cache_read,
        "kept": usage.num_written,
        "said": usage.output,
    }


def _usages(message: Fields) -> Iterator[Fields]:
    return objects(message.get("usage"))


def _read(fields: Fields) -> ReportedUsage | None:
    new = count(fields.get("new"))
    if new is None:
        return None
    read, kept, said = (count(fields.get(name)) for name in ("remembered", "kept", "said"))
    return UsageCounts(new, read, kept, {}, said).settled()


USAGE = UsageFormat(_usages, lambda message: "oops" in message, _read)
