"""A process that writes objects until it is killed:

`python -m tests.fakes.store_writer disk PATH` or `redis URL`.

Prints one line per object once its put has returned. Object n has `key_of(n)` and `payload_of(n)`;
every tenth put refreshes an earlier object to `T0 + REFRESHED_S`.
"""

from __future__ import annotations

import hashlib
import random
import sys
from itertools import count
from pathlib import Path

from engine.store.base import BlockStore, Item
from engine.store.disk.store import DiskStore
from engine.store.redis.store import RedisStore

T0 = 1_700_000_000.0
LIVES_S = 600.0
REFRESHED_S = 1200.0


def key_of(n: int) -> bytes:
    return hashlib.sha256(b"%d" % n).digest()


def payload_of(n: int) -> bytes:
    rng = random.Random(n)
    return rng.randbytes(rng.choice((100, 50_000, 1_000_000)))


def write(store: BlockStore) -> None:
    store.expire(T0)
    for n in count():
        store.put_many([Item(key_of(n), payload_of(n), T0 + LIVES_S)])
        if n % 10 == 9:
            store.refresh_many({key_of(n - 5): T0 + REFRESHED_S})
        print(n, flush=True)


def main(kind: str, where: str) -> None:
    store = (
        DiskStore(Path(where), nbytes=1 << 30)
        if kind == "disk"
        else RedisStore(where, timeout_s=5.0, prefix="w:")
    )
    with store:
        write(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
