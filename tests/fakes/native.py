"""What tests that need the native library are marked with."""

from __future__ import annotations

import pytest

from engine.native.library import why_not_native

REASON = why_not_native()
NEEDS_NATIVE = pytest.mark.skipif(REASON is not None, reason=REASON or "")
