"""The tier in memory, as configured."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.store.kind import TierKind, TierSpec
from engine.store.memory import MemoryStore


class RamSpec(TierSpec, msgspec.Struct, frozen=True, tag="ram"):
    """`nbytes` of the host's memory."""

    nbytes: int


RAM: Final = TierKind("ram", RamSpec, lambda spec, opening: MemoryStore(spec.nbytes))
