"""Usage as an upstream with Anthropic's format reports it. Source: anthropic 2.14 `types/usage.py`,
`message_delta_usage.py`.

`input_tokens` leaves out tokens that were read or written. Some who speak this format count it in
(Alibaba's DashScope does): theirs is the format INCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from gateway.wire.reported import (
    Fields,
    ReportedUsage,
    UsageCounts,
    UsageFormat,
    count,
    objects,
    summed,
)


def usages(message: Fields) -> Iterator[Fields]:
    """Of a Message, of `message_start` and of `message_delta`."""
    started = message.get("message")
    return objects(
        started.get("usage") if isinstance(started, dict) else None, message.get("usage")
    )


def failed(message: Fields) -> bool:
    return message.get("type") == "error"


def ended(message: Fields) -> bool:
    return message.get("type") == "message_stop"


def read_usage(fields: Fields, *, inclusive: bool) -> ReportedUsage | None:
    """Compaction of the conversation is reported beside the sums and not in them, and is charged as
    well (`types/beta/beta_iterations_usage.py`)."""
    own = _counts(fields, inclusive=inclusive)
    if own is None:
        return None
    iterations = fields.get("iterations")
    entries = objects(*iterations) if isinstance(iterations, list) else ()
    beside = [
        _counts(entry, inclusive=inclusive)
        for entry in entries
        if entry.get("type") == "compaction"
    ]
    return summed([own, *(counts for counts in beside if counts is not None)]).settled()


def _counts(fields: Fields, *, inclusive: bool) -> UsageCounts | None:
    total = count(fields.get("input_tokens"))
    if total is None:
        return None
    read = count(fields.get("cache_read_input_tokens"))
    written = count(fields.get("cache_creation_input_tokens"))
    creation = next(objects(fields.get("cache_creation")), {})
    split = {
        "1h": count(creation.get("ephemeral_1h_input_tokens")),
        "5m": count(creation.get("ephemeral_5m_input_tokens")),
    }
    cached = (read or 0) + (
        sum(tokens or 0 for tokens in split.values()) if written is None else written
    )
    uncached = total - cached if inclusive else total
    return UsageCounts(uncached, read, written, split, count(fields.get("output_tokens")))


_SPLITS: Final = {"cache_creation_input_tokens": "cache_creation"}
_PROMPT: Final = frozenset({"input_tokens", "cache_read_input_tokens", *_SPLITS, *_SPLITS.values()})

EXCLUSIVE: Final = UsageFormat(
    usages, failed, partial(read_usage, inclusive=False), _PROMPT, ended, _SPLITS, True
)
INCLUSIVE: Final = UsageFormat(
    usages, failed, partial(read_usage, inclusive=True), _PROMPT, ended, _SPLITS
)
