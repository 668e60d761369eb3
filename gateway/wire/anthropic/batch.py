"""Bodies of `/v1/messages/batches`.

Source: anthropic 2.14 `types/messages/batch_create_params.py`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.wire.anthropic.errors import from_field, invalid
from gateway.wire.fields import FieldError, decode_body

MAX_REQUESTS: Final = 100_000
CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def read_items(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """(custom_id, params) of each request. The params are only looked at when their turn comes.
    Raises `InvalidRequest`."""
    try:
        root = decode_body(body)
        nodes = root.children("requests")
        found = [(node.text("custom_id"), node.json_object("params")) for node in nodes]
    except FieldError as error:
        raise from_field(error) from None
    if not found:
        missing = "requests" not in root.value
        raise invalid(
            ("requests",),
            "Field required" if missing else "List should have at least 1 item after validation",
        )
    if len(found) > MAX_REQUESTS:
        raise invalid(
            ("requests",), f"List should have at most {MAX_REQUESTS} items after validation"
        )
    seen: set[str] = set()
    for i, (custom_id, _) in enumerate(found):
        if not CUSTOM_ID.fullmatch(custom_id):
            raise invalid(
                ("requests", i, "custom_id"), f"String should match pattern '^{CUSTOM_ID.pattern}$'"
            )
        if custom_id in seen:
            raise invalid(("requests", i, "custom_id"), "custom_id must be unique within a batch")
        seen.add(custom_id)
    return found
