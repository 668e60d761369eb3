"""From engines' configurations to what they have stored: an inventory to read,
and a way to empty it while no engine runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from engine.cache.tiers.object_format import is_intact
from engine.cache.tree.namespace import namespace
from engine.config import EngineConfig
from engine.memory import Payload
from engine.store.base import Item, NamedStore, delete_prefix
from engine.store.errors import StoreError
from engine.store.memory import MemoryStore
from engine.store.open import open_tiers
from gateway.operate.inventory import Inventory
from gateway.operate.tier_readers import FolderObjects, StoreObjects, TierObjects
from policies.redis_url import RedisUrl

try:
    from engine.store.encrypted import EncryptedStore
except (
    ModuleNotFoundError
):  # the `encrypt` extra is not installed: what is encrypted can't be told from what is foreign
    EncryptedStore = None  # type: ignore[assignment, misc]


@contextmanager
def open_inventory(engines: Iterable[EngineConfig]) -> Iterator[Inventory]:
    """What these engines have in their SSD folders and in Redis; a server that several share is
    there once.

    Takes no lock, so engines may run meanwhile. Raises `StoreError` where a library is missing; a
    server that does not answer holds nothing.
    """
    with ExitStack() as stack:
        shelves: dict[tuple[str, str], TierObjects] = {}
        secret = b""
        for config in engines:
            secret = config.root_secret
            if config.ssd_path is not None:
                shelves["ssd", config.ssd_path] = FolderObjects(Path(config.ssd_path))
            if config.redis_url is not None and ("redis", config.redis_url) not in shelves:
                remote = msgspec.structs.replace(config, ram_nbytes=0, ssd_path=None)
                (redis,) = stack.enter_context(open_tiers(remote))
                shelves["redis", config.redis_url] = StoreObjects(
                    "redis", RedisUrl.parse(config.redis_url).host, redis.store
                )
        yield Inventory(tuple(shelves.values()), lambda key, payload: unwrap(secret, key, payload))


def unwrap(secret: bytes, key: bytes, payload: Payload) -> Payload | None:
    """A payload as an engine wrote it, whether it was encrypted then or not; None when it is no
    payload under this secret."""
    if is_intact(key, payload):
        return payload
    if EncryptedStore is None:
        return None
    held = MemoryStore(2 * (len(key) + len(payload)) + 4096)
    held.put_many([Item(key, payload, math.inf)])
    return EncryptedStore(held, secret).get_many([key], 0.0)[0]


def forget(engines: Iterable[EngineConfig], tenant: str | None) -> int:
    """Delete what is stored for a tenant, or for everyone, from SSD and Redis; how many objects
    that were.

    Raises `StoreBusy` while an engine has a folder, and `StoreError` when a tier did not do as
    told.
    """
    num_forgotten = 0
    done: set[str] = set()
    for config in engines:
        redis_url = None if config.redis_url in done else config.redis_url
        done.add(config.redis_url or "")
        prefix = b"" if tenant is None else namespace(config.root_secret, tenant)
        with open_tiers(
            msgspec.structs.replace(config, ram_nbytes=0, redis_url=redis_url)
        ) as tiers:
            num_forgotten += sum(_forget(tier, prefix) for tier in tiers)
    return num_forgotten


def _forget(tier: NamedStore, prefix: bytes) -> int:
    num_forgotten, failure = 0, None
    try:
        num_forgotten = delete_prefix(tier.store, prefix)
    except OSError as error:
        failure = str(error)
    problem = tier.store.stats.problem or failure
    if problem is not None:
        raise StoreError(f"the {tier.name} tier does not work, so it was not emptied: {problem}")
    return num_forgotten
