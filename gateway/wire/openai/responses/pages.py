"""Pages of a list, newest first unless asked otherwise.

Source: openai 3.57 `types/responses/input_item_list_params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.wire import json_text
from gateway.wire.fields import is_count
from gateway.wire.openai.errors import invalid

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100


def encode_items(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> bytes:
    """The page that `limit`, `order` and `after` ask for. Raises `InvalidRequest`."""
    limit = query.get("limit", str(DEFAULT_LIMIT))
    if not is_count(limit, MAX_LIMIT):
        raise invalid(
            ("limit",),
            f"Invalid 'limit': expected an integer between 1 and {MAX_LIMIT}.",
            "invalid_value",
        )
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid(
            ("order",),
            "Invalid value for 'order'. Supported values are: 'asc' and 'desc'.",
            "invalid_value",
        )
    ordered = list(items) if order == "asc" else list(reversed(items))
    if (after := query.get("after")) is not None:
        place = next((i for i, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise invalid(
                ("after",), "Invalid 'after': no such item in this list.", "invalid_value"
            )
        ordered = ordered[place + 1 :]
    page = ordered[: int(limit)]
    return json_text.dumps(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(page) < len(ordered),
        }
    )
