"""The tiers of one engine, made from its configuration:
the only place that knows every kind of store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine.config import EngineConfig
from engine.memory import Lend, Stage, buffer
from engine.store.base import BlockStore, NamedStore
from engine.store.disk.files import Files
from engine.store.disk.store import DiskStore
from engine.store.errors import StoreUnsupported
from engine.store.memory import MemoryStore

try:
    from engine.store.encrypted import EncryptedStore
except ModuleNotFoundError:  # the `encrypt` extra is not installed
    EncryptedStore = None  # type: ignore[assignment, misc]

try:
    from engine.store.redis.store import RedisStore
except ModuleNotFoundError:  # the `redis` extra is not installed
    RedisStore = None  # type: ignore[assignment, misc]

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
    """The configured tiers below the device, in the order to read them: `ram`, `ssd`, `redis`;
    closed at the end.

    What is read lies in `stage_nbytes` of memory that is used again and again, and elsewhere when
    those are out. With `encrypt` what leaves memory is encrypted under the root secret. Raises
    `StoreUnsupported` when a library is missing or the Redis URL is of no known kind, and
    `StoreBusy` when another process has the folder. A medium that fails otherwise is no error, nor
    with `waits` a folder in use: its tier is there, says so in `stats.problem`, and works as soon
    as it can.
    """
    lend = buffer
    if stage_nbytes and (
        (config.ssd_path is not None and config.ssd_nbytes > 0) or config.redis_url is not None
    ):
        stage = Stage(stage_nbytes)
        stage.touch()
        lend = stage.lend
    with ExitStack() as opened:
        stores = [
            NamedStore(name, opened.enter_context(store))
            for name, store in _configured(config, progress, waits, lend)
        ]
        yield tuple(stores)


def _configured(
    config: EngineConfig, progress: Progress, waits: bool, lend: Lend
) -> Iterator[tuple[str, BlockStore]]:
    if config.ram_nbytes > 0:
        yield "ram", MemoryStore(config.ram_nbytes)
    if config.ssd_path is not None and config.ssd_nbytes > 0:
        disk = DiskStore(
            Path(config.ssd_path),
            nbytes=config.ssd_nbytes,
            min_free_nbytes=config.ssd_min_free_nbytes,
            eviction=config.eviction,
            waits=waits,
            files=Files(lend),
            progress=lambda num_done, num_total: progress("ssd", num_done, num_total),
        )
        yield "ssd", _at_rest(disk, config, lend)
    if config.redis_url is not None:
        if RedisStore is None:
            raise StoreUnsupported(
                "a Redis tier needs the package redis: pip install 'prompt-cache-gateway[redis]'"
            )
        redis = RedisStore(
            config.redis_url,
            timeout_s=config.redis_timeout_s,
            prefix=config.redis_prefix,
            lend=lend,
        )
        yield "redis", _at_rest(redis, config, lend)


def _at_rest(store: BlockStore, config: EngineConfig, lend: Lend) -> BlockStore:
    if not config.encrypt:
        return store
    if EncryptedStore is None:
        raise StoreUnsupported(
            "encryption needs the package cryptography: pip install 'prompt-cache-gateway[encrypt]'"
        )
    return EncryptedStore(store, config.root_secret, lend)
