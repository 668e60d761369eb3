"""A running gateway's `/admin/cache` routes, asked by the command line. Knows no tables."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from gateway.config import ConfigError
from gateway.operate.cache_admin import Entries, FlushReply, FlushRequest, Stat, VerifyLine
from gateway.operate.cache_pins import PinDone, PinRequest
from gateway.operate.inventory import Progress, Verified
from policies.tenancy import is_loopback

PROBE_S: Final = 1.0
ANSWER_S: Final = 60.0
EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - a server bound to these is reached by them from its own machine

T = TypeVar("T")


def is_gateway(url: str) -> bool:
    """Whether a gateway answers at `url`."""
    try:
        with _opener(url).open(f"{url}/livez", timeout=PROBE_S) as answer:
            return bool(answer.headers.get("Server") == "pcg")
    except (OSError, ValueError, HTTPException):
        return False


class Remote:
    """A gateway at `url`, asked with `key`. Every method raises `ConfigError` with the gateway's
    own words when it refuses."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._key = key

    def stat(self) -> Stat:
        return self._whole("GET", "stat", Stat)

    def entries(self) -> Entries:
        return self._whole("GET", "entries", Entries)

    def flush(self, tenant: str | None) -> int:
        """Returns the number of blocks the engines forgot."""
        return self._whole(
            "POST", "flush", FlushReply, msgspec.json.encode(FlushRequest(tenant))
        ).num_blocks

    def pin(self, key: str, *, pinned: bool) -> PinDone:
        """Returns the bytes that pinned entries take now."""
        return self._whole(
            "POST", "pin" if pinned else "unpin", PinDone, msgspec.json.encode(PinRequest(key))
        )

    def verify(self, progress: Progress) -> Verified:
        """Returns when everything has been read."""
        with self._ask("POST", "verify", b"") as answer:
            for line in answer:
                reached = msgspec.json.decode(line, type=VerifyLine)
                progress(reached.done_nbytes, reached.total_nbytes)
                if reached.verified is not None:
                    return reached.verified
        raise ConfigError(f"{self._url} ended the answer early")

    def _whole(self, method: str, name: str, kind: type[T], body: bytes | None = None) -> T:
        with self._ask(method, name, body) as answer:
            return msgspec.json.decode(answer.read(), type=kind)

    @contextmanager
    def _ask(self, method: str, name: str, body: bytes | None) -> Iterator[HTTPResponse]:
        try:
            request = urllib.request.Request(  # noqa: S310 - the operator's own address
                f"{self._url}/admin/cache/{name}",
                data=body,
                method=method,
                headers={"x-api-key": self._key, "Content-Type": "application/json"},
            )
            with _opener(self._url).open(request, timeout=ANSWER_S) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise ConfigError(f"{self._url} refuses: {_detail(error)}") from None
        except urllib.error.URLError as error:
            raise ConfigError(f"{self._url} does not answer: {error.reason}") from None
        except TimeoutError:
            raise ConfigError(f"{self._url} does not answer: timed out") from None
        except (HTTPException, ValueError) as error:  # its words may hold the key
            raise ConfigError(
                f"{self._url} is no gateway, or cannot be asked like this ({type(error).__name__})"
            ) from None


def _opener(url: str) -> urllib.request.OpenerDirector:
    """An opener that reaches this machine without the proxy that the environment may name.

    For a proxy the same address is its own machine, and it would see the key. Raises `ValueError`
    if `url` is no URL.
    """
    host = urlsplit(url).hostname or ""
    here = is_loopback(host) or host in EVERYWHERE
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))


def _detail(error: urllib.error.HTTPError) -> str:
    """The detail in an RFC 9457 body, else the status."""
    try:
        content: Any = msgspec.json.decode(error.read())
        return str(content["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError, OSError, HTTPException):
        return f"status {error.code}"
