"""Bodies and queries of `/v1/messages/batches`. Source: anthropic 2.14 `types/messages/batch_create_params.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.wire.anthropic.errors import from_field, invalid
from gateway.wire.fields import FieldError, decode_body

MAX_REQUESTS: Final = 100_000
MAX_PAGE: Final = 1000
DEFAULT_PAGE: Final = 20
CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, and whether more follows in the direction that was asked for."""

    ids: Sequence[str]
    has_more: bool


def read_items(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """(custom_id, params) of each request. The params are only looked at when their turn comes. Raises `InvalidRequest`."""
    try:
        root = decode_body(body)
        nodes = root.children("requests")
        found = [(node.text("custom_id"), node.json_object("params")) for node in nodes]
    except FieldError as error:
        raise from_field(error) from None
    if not found:
        missing = "requests" not in root.value
        raise invalid(("requests",), "Field required" if missing else "List should have at least 1 item after validation")
    if len(found) > MAX_REQUESTS:
        raise invalid(("requests",), f"List should have at most {MAX_REQUESTS} items after validation")
    seen: set[str] = set()
    for i, (custom_id, _) in enumerate(found):
        if not CUSTOM_ID.fullmatch(custom_id):
            raise invalid(("requests", i, "custom_id"), f"String should match pattern '^{CUSTOM_ID.pattern}$'")
        if custom_id in seen:
            raise invalid(("requests", i, "custom_id"), "custom_id must be unique within a batch")
        seen.add(custom_id)
    return found


def read_page(query: Mapping[str, str], ids: Sequence[str]) -> Page:
    """The part of `ids` that `limit`, `after_id` and `before_id` ask for. Raises `InvalidRequest`."""
    limit = query.get("limit", str(DEFAULT_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10) or not 1 <= int(limit) <= MAX_PAGE:
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
