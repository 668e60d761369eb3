"""The names under which requests reach the gateway, and the web pages that may send them.

Knows no HTTP library.

A page in a browser can send requests to any address that its user's machine reaches. Its own site
stands in `Origin`; where it has made its own name resolve to the gateway's address, and counts as
the same site (DNS rebinding), that name stands in `Host`. Programs send no `Origin`, and in `Host`
the name that they were configured with.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gateway.errors import Forbidden
from policies.sections import ServerPolicy
from policies.tenancy import is_loopback

ANY_HOST: Final = ("/livez", "/readyz")
"""Paths of probes, which ask by whatever address they have. There is nothing to read there."""

PREFLIGHT_S: Final = 600
"""A browser asks again after this time."""

MAX_SHOWN: Final = 80
"""Characters of a client's own words in an error."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)(?::\d*)?")


@dataclass(frozen=True, slots=True)
class SiteRules:
    """The hosts and origins that a policy lets in.

    `keyed`: every request needs a key. A page that does not have one gains nothing by a name, so
    names are checked only where the policy lists some.
    """

    server: ServerPolicy
    keyed: bool

    def check(self, path: str, headers: Mapping[str, str]) -> str | None:
        """The origin of the web page that may read the answer; None where no other site's page
        asks. `headers` has lower-case names.

        Raises `Forbidden` for a host that is not served, and for a page of a site that
        `server.cors.origins` does not list.
        """
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and path not in ANY_HOST and not self._serves(host):
            raise Forbidden(
                f"the host {host[:MAX_SHOWN]!r} is not served; the operator may add its name to "
                "server.allowed_hosts"
            )
        if origin is None:
            if _from_elsewhere(headers):
                raise Forbidden("requests of other sites' web pages are not served")
            return None
        if origin.lower() in self.server.cors.origins:
            return origin
        if host is not None and _is_site_of(origin, host):
            return None
        raise Forbidden(
            f"web pages of {origin[:MAX_SHOWN]!r} are not served; the operator may add it to "
            "server.cors.origins"
        )

    def _serves(self, host: str) -> bool:
        allowed = self.server.allowed_hosts
        if self.keyed and not allowed:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower().removesuffix(".")
        if is_loopback(name) or name in allowed:
            return True
        # An address is no name that somebody else could make resolve to this machine.
        return not is_loopback(self.server.host) and _is_address(name)


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser asks if a page may send a request: the CORS protocol of the Fetch
    standard."""
    return method == "OPTIONS" and {"origin", "access-control-request-method"} <= headers.keys()


def preflight_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The fields that let a page send what it asks for, beside those of `cors_headers`."""
    granted = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Max-Age": str(PREFLIGHT_S),
    }
    if asked := headers.get("access-control-request-headers"):
        granted["Access-Control-Allow-Headers"] = asked
    if headers.get("access-control-request-private-network") == "true":
        granted["Access-Control-Allow-Private-Network"] = "true"
    return granted


def cors_headers(origin: str) -> dict[str, str]:
    """The fields that let pages of `origin` read an answer. Cookies are not meant: there are
    none."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "*",
        "Vary": "Origin",
    }


def _from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that another site's page asks, though it names no origin: for a
    script, an image or a frame, not for an address that its user follows."""
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    return site in ("cross-site", "same-site") and mode != "navigate"


def _is_site_of(origin: str, host: str) -> bool:
    """Whether a page came from the host that it asks; which scheme it came by, only a proxy in
    front knows."""
    scheme, _, place = origin.lower().partition("://")
    return scheme in ("http", "https") and _with_port(scheme, place) == _with_port(scheme, host)


def _with_port(scheme: str, place: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"{scheme}://{place}")
        return parts.hostname or "", parts.port or {"http": 80, "https": 443}[scheme]
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
