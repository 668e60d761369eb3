"""HTTP header fields as plain data, the same for requests and answers. Pure; knows no HTTP library."""

from __future__ import annotations

from collections.abc import Mapping


def plain_headers(fields: Mapping[str, str]) -> dict[str, str]:
    """Lower-case names; a field sent more than once becomes one list (RFC 9110, section 5.3)."""
    headers: dict[str, str] = {}
    for name, value in fields.items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
