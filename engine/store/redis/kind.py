"""The tier in a Redis, as configured."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.store.base import BlockStore
from engine.store.errors import StoreUnsupported
from engine.store.kind import Opening, TierKind, TierSpec

try:
    from engine.store.redis.store import RedisStore
except ModuleNotFoundError:  # the `redis` extra is not installed
    RedisStore = None  # type: ignore[assignment, misc]


class RedisSpec(TierSpec, msgspec.Struct, frozen=True, tag="redis"):
    """A Redis at `url`, which may hold a password, under keys that begin with `prefix`. `host` is
    its address without one."""

    url: str
    timeout_s: float = 0.05
    prefix: str = "pcg:"
    host: str = ""

    @property
    def where(self) -> str:
        """The address."""
        return self.host


def _open(spec: RedisSpec, opening: Opening) -> BlockStore:
    if RedisStore is None:
        raise StoreUnsupported(
            "a Redis tier needs the package redis: pip install 'prompt-cache-gateway[redis]'"
        )
    return RedisStore(spec.url, timeout_s=spec.timeout_s, prefix=spec.prefix, lend=opening.lend)


REDIS: Final = TierKind("redis", RedisSpec, _open)
