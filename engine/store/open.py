"""The tiers of one engine, opened as its configuration lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from engine.config import EngineConfig
from engine.memory import Lend, Stage, buffer
from engine.store.base import BlockStore, NamedStore
from engine.store.errors import StoreUnsupported
from engine.store.kind import Opening
from engine.store.kinds import TIER_KINDS

try:
    from engine.store.encrypted import EncryptedStore
except ModuleNotFoundError:  # the `encrypt` extra is not installed
    EncryptedStore = None  # type: ignore[assignment, misc]

Progress = Callable[[str, int, int], None]
"""Called with (tier, objects looked at, objects there are) while a tier is opened."""


@contextmanager
def open_tiers(
    config: EngineConfig,
    progress: Progress = lambda tier, num_done, num_total: None,
    *,
    waits: bool = False,
    stage_nbytes: int = 0,
) -> Iterator[tuple[NamedStore, ...]]:
    """The configured tiers below the device, in their order; closed at the end.

    Objects read from a medium lie in `stage_nbytes` of memory that is used again and again, and
    elsewhere while those are out. With `encrypt` objects that leave memory are encrypted under the
    root secret. Raises `StoreUnsupported` when a library is missing or the Redis URL is of no known
    kind, and `StoreBusy` when another process has the folder. A medium that fails otherwise is no
    error, nor with `waits` a folder in use: its tier is there, says so in `stats.problem`, and
    works as soon as it can.
    """
    lend = buffer
    if stage_nbytes and any(spec.where is not None for spec in config.tiers):
        stage = Stage(stage_nbytes)
        stage.touch()
        lend = stage.lend
    with ExitStack() as opened:
        stores = []
        for spec in config.tiers:
            opening = Opening(lend, waits, partial(progress, spec.kind))
            store = TIER_KINDS[spec.kind].open(spec, opening)
            if config.encrypt and spec.where is not None:
                store = _encrypted(store, config, lend)
            stores.append(NamedStore(spec.kind, opened.enter_context(store)))
        yield tuple(stores)


def _encrypted(store: BlockStore, config: EngineConfig, lend: Lend) -> BlockStore:
    if EncryptedStore is None:
        raise StoreUnsupported(
            "encryption needs the package cryptography: pip install 'prompt-cache-gateway[encrypt]'"
        )
    return EncryptedStore(store, config.root_secret, lend)
