"""The billing nonce that some clients put into the system text, different in every request."""

from __future__ import annotations

import re
from typing import Final

BILLING_NONCE: Final = re.compile(r"x-anthropic-billing-header:(?:\s*[A-Za-z_]+=[^;\r\n]*;)+\s*")
"""The whole first system block then: `x-anthropic-billing-header: cc_version=...; ...`."""

NONCE_DROPPED: Final = "billing-nonce-dropped"
