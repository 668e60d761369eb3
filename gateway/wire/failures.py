"""Errors in every wire format: the row of a table, and the headers about a retry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from gateway.errors import GatewayError, NotCached, Overloaded, Poisonous, UnknownEncoding

Row = TypeVar("Row")


def row_for(table: Mapping[type[GatewayError], Row], error: GatewayError) -> Row:
    """The row of the error's class, or of its nearest ancestor that has one. `GatewayError` must be
    in the table."""
    return next(table[cls] for cls in type(error).__mro__ if cls in table)


def retry_headers(error: GatewayError) -> dict[str, str]:
    """`Retry-After` in whole seconds (RFC 9110, 10.2.3), and the hint both official SDKs obey.
    `Accept-Encoding` where the body's encoding was the reason."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Overloaded):
        headers["x-should-retry"] = "true"
    if isinstance(error, NotCached | Poisonous):
        headers["x-should-retry"] = "false"
    if isinstance(error, UnknownEncoding):  # RFC 9110, section 15.5.16
        headers["Accept-Encoding"] = ", ".join(error.known)
    return headers
