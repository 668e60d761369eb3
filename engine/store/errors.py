"""Errors of tiers, raised only when one is opened: afterwards a failing medium costs misses,
never an exception.

StoreError              the tier cannot be used as configured: said at start
├── StoreBusy               another process has the folder
└── StoreUnsupported        a library is missing, or a URL is of no kind we know
"""

from __future__ import annotations

from engine.errors import EngineError


class StoreError(EngineError):
    """The tier cannot be used as configured. Messages never hold passwords, keys or payloads."""


class StoreBusy(StoreError):
    """Another process writes to the folder."""


class StoreUnsupported(StoreError):
    """A library that the tier needs is not installed, or its URL is of an unknown kind."""
