"""Pages of Anthropic's lists, as its SDK walks them.

Source: anthropic 2.14 `pagination.py`. Knows nothing of the listed items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.wire.anthropic.errors import invalid
from gateway.wire.fields import is_count

MAX_PAGE: Final = 1000
DEFAULT_PAGE: Final = 20


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, and whether more follows in the direction that was asked for."""

    ids: Sequence[str]
    has_more: bool


def read_page(query: Mapping[str, str], ids: Sequence[str]) -> Page:
    """The part of `ids` that `limit`, `after_id` and `before_id` ask for. Raises
    `InvalidRequest`."""
    limit = query.get("limit", str(DEFAULT_PAGE))
    if not is_count(limit, MAX_PAGE):
        raise invalid(("limit",), f"Input should be an integer between 1 and {MAX_PAGE}")
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise invalid(("after_id",), "only one of after_id and before_id may be given")
    for name, wanted in (("after_id", after), ("before_id", before)):
        if wanted is not None and wanted not in ids:
            raise invalid((name,), "not found")
    if before is not None:
        earlier = ids[: ids.index(before)]
        return Page(earlier[-int(limit) :], len(earlier) > int(limit))
    later = ids[ids.index(after) + 1 :] if after is not None else ids
    return Page(later[: int(limit)], len(later) > int(limit))
