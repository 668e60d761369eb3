"""A connection to a Redis or Valkey server or cluster, by URL: batches of commands in, replies out.
Knows no objects.

No retries and no waiting beyond the timeout: whether to ask again is for the caller to decide. Safe
for several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine.memory import Lend, Payload, buffer
from engine.store.errors import StoreUnsupported
from engine.store.redis.replies import LargeReplies

Command = tuple[str | Payload | int, ...]
Reply = bytes | memoryview | int | bool | redis.RedisError | None
"""The reply to a command. An error is the reply of its own command only."""

UNANSWERED: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.InvalidResponse,
    redis.exceptions.RedisClusterException,
    OSError,
)
"""Errors that say that the server isn't there, does not answer in time, lets nobody in, or does not
speak RESP."""

SCAN_COUNT: Final = 500

_SCHEMES: Final = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
}


class RedisConnection:
    """The server at `url`: `redis://`, `rediss://` (TLS), `unix://`, or `redis+cluster://` for any
    node of a cluster.

    Password, database and TLS options are redis-py's, in the URL. Connects at the first use.
    `timeout_s` bounds the wait for a connection, for each piece of a reply, and for sending one
    batch. Large strings of replies lie in memory from `lend`, but for those of a cluster, whose
    client has parsers of its own.
    """

    def __init__(self, url: str, *, timeout_s: float, lend: Lend = buffer) -> None:
        """Raises `StoreUnsupported` for a URL that can't be read. Its message leaves the URL out,
        which may hold a password."""
        scheme, _, rest = url.partition("://")
        if scheme not in _SCHEMES or not rest:
            raise StoreUnsupported(
                f"a Redis URL starts with one of {', '.join(f'{known}://' for known in _SCHEMES)}"
            )
        self._cluster = scheme.endswith("+cluster")
        self._url = f"{_SCHEMES[scheme]}://{rest}"
        self._options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "parser_class": partial(LargeReplies, lend=lend),
            "protocol": 2,
            "driver_info": None,
        }
        self._client: Any = None
        self._lock = threading.Lock()
        try:
            _ = urlsplit(self._url).port
            if not self._cluster:
                self._client = redis.Redis.from_url(
                    self._url, retry=Retry(NoBackoff(), 0), **self._options
                )
        except (ValueError, TypeError) as error:
            raise StoreUnsupported(f"the Redis URL can't be read: {type(error).__name__}") from None

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        """One reply per command, in order, in one round trip. Raises one of `UNANSWERED` or another
        `redis.RedisError`."""
        pipeline = self._connected().pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Reply] = pipeline.execute(raise_on_error=False)
        return replies

    def names(self, prefix: str) -> Iterator[bytes]:
        """Keys that begin with `prefix`, possibly some twice. Raises as `run` does."""
        pattern = "".join(f"\\{char}" if char in "\\*?[]" else char for char in prefix) + "*"
        names: Iterator[bytes] = self._connected().scan_iter(match=pattern, count=SCAN_COUNT)
        return names

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _connected(self) -> Any:
        with self._lock:
            if (
                self._client is None
            ):  # a cluster's client asks for the map of slots before it exists
                self._client = redis.RedisCluster.from_url(
                    self._url,
                    retry=Retry(NoBackoff(), 1),
                    require_full_coverage=False,
                    **self._options,
                )
            return self._client
