"""From a request body to a `Request`: the steps that every wire format shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.directives import cache_directives
from gateway.wire.fields import FieldError, Node, decode_body
from gateway.wire.misspelt import misspelt

ReadNode: TypeAlias = Callable[[Node], Request]


def read_request(
    body: bytes,
    headers: Mapping[str, str],
    read: ReadNode,
    reword: Callable[[FieldError], InvalidRequest],
) -> Request:
    """The request that `read` finds in a JSON body, with `Cache-Control`, the end user
    and warnings of misspelt fields added.

    Raises `InvalidRequest`; `reword` puts a reader's `FieldError` into the provider's words.
    """
    try:
        node = decode_body(body)
        request = read(node)
    except FieldError as error:
        raise reword(error) from None
    return msgspec.structs.replace(
        request,
        directives=cache_directives(headers),
        end_user=_end_user(node.value),
        warnings=(*request.warnings, *misspelt(node.value)),
    )


def _end_user(body: Mapping[str, Any]) -> str:
    """The client's own name for its user, in any provider's field for it; empty without."""
    metadata = body.get("metadata")
    named = metadata.get("user_id") if isinstance(metadata, dict) else None
    found = (body.get("safety_identifier"), body.get("user"), named)
    return next((name for name in found if isinstance(name, str)), "")
