"""HTTP header fields as plain data, the same for requests and answers.

Pure; knows no HTTP library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NO_TEXT: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def plain_headers(fields: Mapping[str, str]) -> dict[str, str]:
    """Lower-case names; a field sent more than once becomes one list (RFC 9110, section 5.3).

    What can be written nowhere else is as good as not sent: bytes that are no UTF-8, which are read
    as lone surrogates, and control characters, which a field must not hold (section 5.5) and
    answers do.
    """
    headers: dict[str, str] = {}
    for name, value in fields.items():
        if _NO_TEXT.search(value) is None:
            name = name.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
