"""The kinds of tier there are. A further one is registered here."""

from __future__ import annotations

from typing import Final

from engine.store.disk.kind import SSD
from engine.store.kind import TierKinds
from engine.store.memory_kind import RAM
from engine.store.redis.kind import REDIS

TIER_KINDS: Final[TierKinds] = {kind.name: kind for kind in (RAM, SSD, REDIS)}
