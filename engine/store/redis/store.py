"""A tier in a Redis server, which several gateways may share. Knows nothing of what the bytes mean.

One string per object: header and payload as on disk (`engine/store/object.py`). The expiry in the
header decides; the key's own PX is a minute longer, so that the server forgets what nobody
refreshed. A refresh overwrites the 16 bytes of the expiry in place and moves the PX: two commands
that need not be atomic, because the slot carries its own checksum and a PX that is too short only
loses the object. No scripts, no transactions: any server, proxy or cluster will do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Self

import redis

from engine.memory import Lend, Payload, buffer, joined
from engine.store.base import Found, Item, StoreStats
from engine.store.health import ErrorReporter
from engine.store.object import (
    EXPIRY_AT,
    HEADER_NBYTES,
    MAGIC,
    PAYLOAD_NBYTES_AT,
    ObjectHeader,
    decode_header,
    encode_expiry,
    encode_header,
)
from engine.store.redis.breaker import Breaker
from engine.store.redis.server import UNANSWERED, Command, RedisConnection, Reply

NUM_FAILURES: Final = 3
OPEN_S: Final = 2.0
"""After three calls in a row without an answer the server is left alone, and tried every two
seconds with one call."""
WRITE_PATIENCE: Final = 10
"""A write may take this many timeouts: its timeout covers all its bytes, not the time without
progress as in a read."""
MAX_WRITE_NBYTES: Final = 16 << 20
"""Writes go out in batches of about this size, each under its own timeout."""
PX_MARGIN_S: Final = 60.0
UNKNOWN_TIME_PX_MS: Final = 86_400_000
MAX_PX_MS: Final = 10 * 365 * 86_400_000
"""The time that the server keeps an object written before any time is known, and the longest."""
MAX_OWED: Final = 65_536
MAX_OWED_AT_ONCE: Final = 256
"""The most keys that may await their deletion, and the most that go out with one batch of
commands."""
MAX_SCAN_AT_ONCE: Final = 256
_HEADER_OF_WHOLE: Final = f"""
local header = redis.pcall('GETRANGE', KEYS[1], 0, {HEADER_NBYTES - 1})
if type(header) ~= 'string' or #header < {HEADER_NBYTES} or redis.call('STRLEN', KEYS[1])
    ~= {HEADER_NBYTES} + struct.unpack('<I8', header, {PAYLOAD_NBYTES_AT + 1}) then
  header = ''
end
local outlives = header ~= '' and
    struct.unpack('<d', header, {EXPIRY_AT + 1}) > struct.unpack('<d', ARGV[1])
"""
REFRESH: Final = f"""{_HEADER_OF_WHOLE}
if header ~= '' and not (ARGV[3] == '1' and outlives) then
  redis.call('SETRANGE', KEYS[1], {EXPIRY_AT}, ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return header
"""
MAKE_ROOM: Final = f"""{_HEADER_OF_WHOLE}
if outlives then return header end
redis.call('UNLINK', KEYS[1])
return ''
"""
"""Scripts, which a server runs undisturbed: ARGV begins with an expiry slot, and the reply is the
header before the call. It is checked here: no script knows the checksum."""
NOT_LISTED: Final = "the Redis server does not tell what it has"


class RedisStore:
    """Objects under `prefix` + key in hex. The cap is the server's own `maxmemory`; what it refuses
    is a dropped put.

    A server that refuses, hangs, or resets costs at most `timeout_s` without progress per call (a
    write ten times that, a cluster one more for each node it asks for the map of slots), and
    nothing while the breaker is open. Deletes that did not reach it are owed: until they do,
    their keys are misses here (a bounded number of keys, in this process only). A refresh
    that fails leaves the old expiry. `stats.nbytes` and `num_items` stay 0: the server is shared.
    `clock` is monotonic and paces the breaker only.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 0.05,
        prefix: str = "pcg:",
        clock: Callable[[], float] = time.monotonic,
        lend: Lend = buffer,
    ) -> None:
        """Does not connect. Raises `StoreUnsupported` for a URL of an unknown kind."""
        self.stats = StoreStats()
        self._prefix = prefix
        self._clock = clock
        self._reads = RedisConnection(url, timeout_s=timeout_s, lend=lend)
        self._writes = RedisConnection(url, timeout_s=timeout_s * WRITE_PATIENCE)
        self._breaker = Breaker(num_failures=NUM_FAILURES, open_s=OPEN_S, clock=clock)
        self._health = ErrorReporter("redis", self.stats)
        self._lock = threading.Lock()
        self._now_s: float | None = None
        self._owed: dict[bytes, object] = {}

    def find_many(self, keys: Sequence[bytes], now_s: float) -> list[Found | None]:
        """One answer per key in one round trip, from headers and lengths."""
        now_s = self._see(now_s)
        return [
            found if found is not None and found.expires_at_s > now_s else None
            for found in self._find(keys) or [None] * len(keys)
        ]

    def get_many(self, keys: Sequence[bytes], now_s: float) -> list[Payload | None]:
        """One payload or None per key in one round trip, checksums verified."""
        now_s = self._see(now_s)
        commands: list[Command] = [("GET", self._name(key)) for key in keys]
        payloads: list[Payload | None] = []
        headers = self._headers(self._reads, "get", keys, commands)
        for header, value in headers or [(None, None)] * len(keys):
            payload = None
            if header is not None and header.expires_at_s > now_s:
                assert isinstance(value, bytes | memoryview)
                payload = memoryview(value)[HEADER_NBYTES:]
                if not header.describes(payload):
                    payload = None
                    self._count_damaged(1)
            payloads.append(payload)
        return payloads

    def put_many(self, items: Sequence[Item], *, only_longer: bool = False) -> list[bool]:
        """Store items, in order, in one round trip per batch. A put that the server refuses or does
        not answer leaves nothing under its key."""
        held: list[bool] = []
        for batch in _batches(items):
            held += self._put(batch, only_longer=only_longer)
        return held

    def refresh_many(
        self, expiries: Mapping[bytes, float], *, only_longer: bool = False
    ) -> list[bool]:
        """Move the expiry of objects in one round trip. One that fails keeps its old expiry."""
        commands: list[Command] = [
            (
                *("EVAL", REFRESH, 1, self._name(key), encode_expiry(key, expires_at_s)),
                *(self._px_ms(expires_at_s), int(only_longer)),
            )
            for key, expires_at_s in expiries.items()
        ]
        headers = self._headers(self._writes, "refresh", list(expiries), commands)
        return [header is not None for header, _ in headers or [(None, None)] * len(expiries)]

    def expire(self, now_s: float) -> None:
        """Learn the time, which is needed to tell the server how long to keep an object; it expires
        objects by itself. Deletes that are owed are tried again."""
        self._see(now_s)
        self._ask(self._writes, "delete", [])

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Forget the keys. A delete that does not reach the server is tried again later; until then
        the key is a miss here."""
        self._owe(keys)
        for _ in range(0, len(keys), MAX_OWED_AT_ONCE):
            self._ask(self._writes, "delete", [])

    def scan(self) -> Iterator[tuple[bytes, Found]]:
        """Every object under the prefix, expired ones included, some possibly twice. Raises OSError
        when the server fails."""
        keys = [key for name in self._names() if (key := self._key(name)) is not None]
        for at in range(0, len(keys), MAX_SCAN_AT_ONCE):
            page = keys[at : at + MAX_SCAN_AT_ONCE]
            all_found = self._find(page)
            if not all_found:
                raise OSError(NOT_LISTED)
            yield from (
                (key, found)
                for key, found in zip(page, all_found, strict=True)
                if found is not None
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections; the objects stay."""
        self._reads.close()
        self._writes.close()

    def _find(self, keys: Sequence[bytes]) -> list[Found | None]:
        """The object of each key, expired or not; nothing when the server does not answer."""
        commands: list[Command] = []
        for key in keys:
            name = self._name(key)
            commands += (("GETRANGE", name, 0, HEADER_NBYTES - 1), ("STRLEN", name))
        return [
            Found(header.payload_nbytes, header.expires_at_s)
            if header is not None and length == HEADER_NBYTES + header.payload_nbytes
            else None
            for header, length in self._headers(self._reads, "get", keys, commands)
        ]

    def _headers(
        self,
        server: RedisConnection,
        operation: str,
        keys: Sequence[bytes],
        commands: Sequence[Command],
    ) -> list[tuple[ObjectHeader | None, Reply]]:
        """The header of each key's first reply, and the reply to its last command.

        The result is empty if the server does not answer. A header is None unless it is sound, its
        key's own, and not to be deleted.
        """
        with self._lock:
            owed = set(self._owed)
        replies = self._ask(server, operation, commands)
        if not replies:
            return []
        step = len(commands) // len(keys)
        headers: list[ObjectHeader | None] = []
        for key, value in zip(keys, replies[::step], strict=True):
            header = None
            if key not in owed and isinstance(value, bytes | memoryview) and len(value) > 0:
                header = decode_header(value)
                if header is None or header.key != key:
                    header = None
                    # A refresh by an older version that crosses a delete leaves a stump of zeros.
                    self._count_damaged(any(value[: len(MAGIC)]))
            headers.append(header)
        return list(zip(headers, replies[step - 1 :: step], strict=True))

    def _count_damaged(self, num_damaged: int) -> None:
        with self._lock:
            self.stats.num_damaged += num_damaged

    def _put(self, items: Sequence[Item], *, only_longer: bool) -> list[bool]:
        """One batch. With `only_longer` a script first deletes what is to be replaced, and the
        payload is stored only where nothing is: the server copies payloads of scripts twice."""
        with self._lock:  # What is owed is to be replaced, however long it would live.
            guarded = [only_longer and item.key not in self._owed for item in items]
        commands: list[Command] = []
        for item, is_guarded in zip(items, guarded, strict=True):
            name, px_ms = self._name(item.key), self._px_ms(item.expires_at_s)
            header = encode_header(item.key, item.payload, item.expires_at_s, item.recompute_cost)
            if is_guarded:
                commands.append(("EVAL", MAKE_ROOM, 1, name, header[EXPIRY_AT:]))
            value = joined((header, item.payload))
            commands.append(("SET", name, value, "PX", px_ms, *(("NX",) if is_guarded else ())))
        replies = self._ask(self._writes, "put", commands)
        if replies is None:
            self._owe([item.key for item in items])
            return [False] * len(items)
        rest = iter(replies)
        return [
            self._is_held(item, next(rest) if is_guarded else None, next(rest))
            for item, is_guarded in zip(items, guarded, strict=True)
        ]

    def _is_held(self, item: Item, header: Reply, stored: Reply) -> bool:
        """Whether an item is held, by the header of what outlives it and by the reply to its
        put."""
        if isinstance(stored, Exception):
            self._owe([item.key])
            return False
        if stored is not None:
            with self._lock:
                self._owed.pop(item.key, None)
                self.stats.num_undeleted = len(self._owed)
            return True
        if not isinstance(header, bytes | memoryview) or not header:
            return False  # Another host was faster, for however long.
        other = decode_header(header)
        if other is not None and other.key == item.key:
            return True
        return self._put([item], only_longer=False)[0]  # What is there is damaged.

    def _px_ms(self, expires_at_s: float) -> int:
        if self._now_s is None:
            return UNKNOWN_TIME_PX_MS
        return int(min(max((expires_at_s - self._now_s + PX_MARGIN_S) * 1000, 1), MAX_PX_MS))

    def _ask(
        self, server: RedisConnection, operation: str, commands: Sequence[Command]
    ) -> list[Reply] | None:
        """The replies, or None when the server was not asked or did not answer. Pays owed deletes
        on the way.

        With nothing to ask or pay the server is left alone: silence would prove nothing about it.
        """
        with self._lock:
            owed = list(islice(self._owed.items(), MAX_OWED_AT_ONCE))
        if not owed and not commands:
            return []
        if not self._breaker.allow():
            return None
        unlinks: list[Command] = [("UNLINK", self._name(key)) for key, _ in owed]
        failure: Exception | None
        replies: list[Reply] = []
        try:
            replies = server.run([*unlinks, *commands])
            failure = next((reply for reply in replies if isinstance(reply, UNANSWERED)), None)
        except (*UNANSWERED, redis.RedisError) as error:
            failure = error
        except BaseException:
            self._breaker.failed()
            raise
        with self._lock:
            self._health.now_s = self._clock()
            if failure is not None:
                self._breaker.failed()
                self._health.failed("answer", type(failure).__name__)
                return None
            self._breaker.succeeded()
            self._health.worked("answer")
            self._note(operation, replies[len(owed) :])
            for (key, token), reply in zip(owed, replies, strict=False):
                if isinstance(reply, int) and self._owed.get(key) is token:
                    del self._owed[key]
            self.stats.num_undeleted = len(self._owed)
        return replies[len(owed) :]

    def _note(self, operation: str, replies: Sequence[Reply]) -> None:
        refusal = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if refusal is not None:
            self._health.failed(operation, type(refusal).__name__)
        elif replies:
            self._health.worked(operation)

    def _owe(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._owed[key] = object()
            while len(self._owed) > MAX_OWED:
                del self._owed[next(iter(self._owed))]
            self.stats.num_undeleted = len(self._owed)

    def _names(self) -> list[bytes]:
        """The names under the prefix. Raises OSError when the server does not tell them all."""
        if not self._breaker.allow():
            raise OSError(NOT_LISTED)
        names: list[bytes] = []
        try:
            names.extend(self._reads.names(self._prefix))
        except UNANSWERED as error:
            self._breaker.failed()
            with self._lock:
                self._health.failed("answer", type(error).__name__)
            raise OSError(NOT_LISTED) from None
        except (
            redis.RedisError
        ) as error:  # an answer, if a refusal: the server may be asked for everything else
            self._breaker.succeeded()
            with self._lock:
                self._health.failed("scan", type(error).__name__)
            raise OSError(NOT_LISTED) from None
        except BaseException:
            self._breaker.failed()
            raise
        self._breaker.succeeded()
        with self._lock:
            self._health.worked("scan")
        return names

    def _name(self, key: bytes) -> str:
        return self._prefix + key.hex()

    def _key(self, name: bytes) -> bytes | None:
        try:
            return bytes.fromhex(name.decode()[len(self._prefix) :])
        except ValueError:
            return None

    def _see(self, now_s: float) -> float:
        """The largest time seen."""
        with self._lock:
            self._now_s = now_s if self._now_s is None else max(self._now_s, now_s)
            return self._now_s


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    """The items in order, in batches of about `MAX_WRITE_NBYTES`."""
    batch: list[Item] = []
    nbytes = 0
    for item in items:
        batch.append(item)
        nbytes += len(item.payload)
        if nbytes >= MAX_WRITE_NBYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
