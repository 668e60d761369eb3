"""An inventory of the objects that engines have stored,
and a way to empty their tiers while no engine runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from engine.cache.tiers.object_format import is_intact
from engine.cache.tree.namespace import namespace
from engine.config import EngineConfig
from engine.memory import Payload
from engine.store.base import Item, NamedStore, delete_prefix
from engine.store.errors import StoreError
from engine.store.kind import TierSpec
from engine.store.kinds import TIER_KINDS
from engine.store.memory import MemoryStore
from engine.store.open import open_tiers
from engine.store.reader import StoreObjects, TierObjects
from gateway.operate.inventory import Inventory

try:
    from engine.store.encrypted import EncryptedStore
except ModuleNotFoundError:
    # Without the `encrypt` extra encrypted objects cannot be told from foreign ones.
    EncryptedStore = None  # type: ignore[assignment, misc]


@contextmanager
def open_inventory(engines: Iterable[EngineConfig]) -> Iterator[Inventory]:
    """The inventory of these engines; a place that several share is in it once.

    Takes no lock, so engines may run meanwhile. Raises `StoreError` where a library is missing; a
    server that does not answer holds nothing.
    """
    with ExitStack() as stack:
        places = []
        secret = b""
        for spec, config in _places(engines).items():
            secret = config.root_secret
            places.append(stack.enter_context(_open_place(spec, config)))
        yield Inventory(tuple(places), lambda key, payload: unwrap(secret, key, payload))


@contextmanager
def _open_place(spec: TierSpec, config: EngineConfig) -> Iterator[TierObjects]:
    reader = TIER_KINDS[spec.kind].reader
    if reader is not None:
        yield reader(spec)
        return
    with open_tiers(_with_tier(config, spec)) as (tier,):
        yield StoreObjects(tier.name, spec.where or "", tier.store)


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
    """Delete the objects of a tenant, or of everyone, from every place; returns their number.

    Raises `StoreBusy` while an engine has a folder, and `StoreError` when a tier did not delete
    them all.
    """
    num_forgotten = 0
    for spec, config in _places(engines).items():
        prefix = b"" if tenant is None else namespace(config.root_secret, tenant)
        with open_tiers(_with_tier(config, spec)) as (tier,):
            num_forgotten += _forget(tier, prefix)
    return num_forgotten


def _places(engines: Iterable[EngineConfig]) -> dict[TierSpec, EngineConfig]:
    """Every tier that outlives its engine, with the configuration of one engine that has it."""
    return {spec: config for config in engines for spec in config.tiers if spec.where is not None}


def _with_tier(config: EngineConfig, spec: TierSpec) -> EngineConfig:
    return msgspec.structs.replace(config, tiers=(spec,))


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
