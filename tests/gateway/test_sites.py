"""No web page in a browser reaches the gateway by its own name or by its own requests,
and programs do by every name that is theirs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from policies.errors import PolicyError
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import (
    ANTHROPIC,
    OPENAI,
    Served,
    anthropic_body,
    make_policy,
    openai_body,
    serving,
)

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
BODIES = {MESSAGES: anthropic_body(), CHAT: openai_body()}
HEADERS = {MESSAGES: ANTHROPIC, CHAT: OPENAI}
KEYED = "tenants: [{name: a, keys: [key-of-a]}]\n"
PAGE = "https://app.example"
OPEN_TO_PAGE = f"server: {{cors: {{origins: ['{PAGE}']}}}}\n"
ANYWHERE = "server: {host: 0.0.0.0, allow_anonymous: true}\n"

ROUTES = [
    ("POST", MESSAGES),
    ("POST", CHAT),
    ("POST", "/v1/messages/batches"),
    ("GET", "/v1/messages/batches"),
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/models"),
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/nowhere"),
    ("OPTIONS", MESSAGES),
]
FOREIGN = (
    *("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:80"),
    *("192.168.1.5:8080", "0.0.0.0:8080", "[2001:db8::1]:8080"),
    *("user@localhost", "localhost, evil.example", ""),
)
OTHER_SITES = (PAGE, "http://localhost:3000", "null", "file://", "chrome-extension://a", "//[", "")
ADMIN = [("GET", "/admin/cache/stat"), ("POST", "/admin/cache/flush"), ("GET", "/admin/nowhere")]


async def ask(
    served: Served, method: str, path: str, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers, the names of which are lower-case."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = orjson.dumps(BODIES.get(path, {})) if method == "POST" else None
    async with served.http.request(
        method, path, data=data, headers=HEADERS.get(path, {}) | sent
    ) as got:
        return (
            got.status,
            await got.read(),
            {name.lower(): got.headers[name] for name in got.headers},
        )


@pytest.mark.parametrize(("method", "path"), ROUTES + ADMIN)
async def test_a_foreign_name_is_refused(method: str, path: str) -> None:
    """Whatever route it asks for, in the caller's format; the engine never hears of it."""
    backend = ScriptedBackend()
    async with serving(backend) as served:
        for host in FOREIGN:
            status, body, _ = await ask(served, method, path, Host=host)
            assert status == 403, host
            told = orjson.loads(body)
            if path.startswith("/admin"):
                assert (told["status"], told["title"]) == (403, "Forbidden")
                assert "server.allowed_hosts" in told["detail"]
            else:
                assert "server.allowed_hosts" in told["error"]["message"]
                kind = "permission_error" if "messages" in path else "invalid_request_error"
                assert told["error"]["type"] == kind
        assert backend.requests == []


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "localhost.:80", "127.0.0.1:8080", "127.8.9.1", "[::1]:8080"],
)
async def test_loopback_names_are_served(path: str, host: str) -> None:
    """Without tenants and without a list; ports are not asked about."""
    async with serving(ScriptedBackend()) as served:
        assert (await ask(served, "POST", path, Host=host))[0] == 200


async def test_names_of_the_policy_are_served() -> None:
    """A container's, a proxy's, an address; no name below them or beside them."""
    policy = "server: {allowed_hosts: [gateway, PCG.example., '10.0.0.7', '[2001:db8::1]']}"
    async with serving(ScriptedBackend(), policy) as served:
        for host in (
            "gateway:8080",
            "pcg.example",
            "10.0.0.7:1",
            "[2001:DB8::1]:8080",
            "localhost",
        ):
            assert (await ask(served, "POST", CHAT, Host=host))[0] == 200, host
        for host in ("agateway", "x.pcg.example", "pcg.example.evil", "10.0.0.8"):
            assert (await ask(served, "POST", CHAT, Host=host))[0] == 403, host


async def test_with_tenants_names_are_free_unless_there_is_a_list() -> None:
    """The key is what counts. A list is kept to all the same."""
    async with serving(ScriptedBackend(), KEYED) as served:
        assert (await ask(served, "POST", CHAT, Host="any.example", x_api_key="key-of-a"))[0] == 200
    async with serving(ScriptedBackend(), KEYED + "server: {allowed_hosts: [gw]}") as served:
        assert (await ask(served, "POST", CHAT, Host="any.example", x_api_key="key-of-a"))[0] == 403
        assert (await ask(served, "POST", CHAT, Host="gw:80", x_api_key="key-of-a"))[0] == 200


@pytest.mark.parametrize("more", ["", ", allowed_hosts: [gw]"])
async def test_beyond_loopback_addresses_are_served_and_names_are_not(more: str) -> None:
    """No address can be made to resolve to another machine."""
    async with serving(ScriptedBackend(), ANYWHERE.replace("}", f"{more}}}")) as served:
        for host in ("192.168.1.5:8080", "[2001:db8::1]", "0.0.0.0:1", "localhost"):
            assert (await ask(served, "POST", CHAT, Host=host))[0] == 200, host
        assert (await ask(served, "POST", CHAT, Host="evil.example"))[0] == 403


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_probes_may_use_any_name(path: str) -> None:
    """A load balancer asks by whatever address it has."""
    async with serving(ScriptedBackend()) as served:
        assert (await ask(served, "GET", path, Host="10.1.2.3:8080"))[0] == 200


async def test_a_request_without_a_host_is_a_programs() -> None:
    """HTTP/1.0 has none; every browser sends one."""
    async with serving(ScriptedBackend()) as served:
        reader, writer = await asyncio.open_connection(served.listener.host, served.listener.port)
        writer.write(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("keys", ["", KEYED])
@pytest.mark.parametrize(("method", "path"), ROUTES + ADMIN)
async def test_a_page_of_another_site_is_refused(method: str, path: str, keys: str) -> None:
    """Its request, which needs no preflight as `text/plain`, does nothing; its preflights are
    refused."""
    backend = ScriptedBackend()
    async with serving(backend, keys) as served:
        for origin in OTHER_SITES:
            status, _, headers = await ask(
                served, method, path, Origin=origin, Content_Type="text/plain", x_api_key="key-of-a"
            )
            assert status == 403, origin
            assert not any(name.startswith("access-control-") for name in headers)
        assert backend.requests == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_what_a_browser_sends_for_a_page_without_an_origin(site: str) -> None:
    """Scripts, images: refused. An address that its user follows is served, as are programs that
    say how they fetch."""
    async with serving(ScriptedBackend()) as served:
        sent: dict[str, Any] = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "no-cors"}
        assert (await ask(served, "GET", "/v1/models", **sent))[0] == 403
        sent = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
        assert (await ask(served, "GET", "/", **sent))[0] == 200
        assert (await ask(served, "POST", CHAT, Sec_Fetch_Mode="cors"))[0] == 200


async def test_a_page_of_the_gateways_own_site_is_served() -> None:
    """Behind a proxy there may be one, by the proxy's scheme."""
    async with serving(ScriptedBackend(), "server: {allowed_hosts: [pcg.example]}") as served:
        for origin, host, status in (
            ("https://pcg.example", "pcg.example", 200),
            ("http://localhost:8080", "localhost:8080", 200),
            ("http://localhost:8081", "localhost:8080", 403),
            ("http://pcg.example:8080", "pcg.example", 403),
        ):
            assert (await ask(served, "POST", CHAT, Origin=origin, Host=host))[0] == status


@pytest.mark.parametrize("stream", [False, True])
async def test_a_listed_site_may_ask_and_read(stream: bool) -> None:
    """Its preflight is answered with what it asks for, and its answers are readable."""
    async with serving(ScriptedBackend(), OPEN_TO_PAGE) as served:
        status, body, headers = await ask(
            served,
            "OPTIONS",
            CHAT,
            Origin=PAGE,
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="authorization,x-stainless-os",
            Access_Control_Request_Private_Network="true",
        )
        assert (status, body) == (204, b"")
        assert headers["access-control-allow-origin"] == PAGE
        assert headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert "POST" in headers["access-control-allow-methods"]
        assert headers["access-control-allow-private-network"] == "true"
        assert headers["vary"] == "Origin"
        asked = openai_body(stream=stream)
        async with served.http.post(CHAT, json=asked, headers={"Origin": PAGE}) as got:
            assert (got.status, got.headers["Access-Control-Allow-Origin"]) == (200, PAGE)
            assert await got.read()
        async with served.http.post(CHAT, data=b"{", headers={"Origin": PAGE}) as got:
            assert (got.status, got.headers["Access-Control-Allow-Origin"]) == (400, PAGE)
        for other in ("https://app.example.evil", "http://app.example", f"{PAGE}:444"):
            assert (await ask(served, "POST", CHAT, Origin=other))[0] == 403


@pytest.mark.parametrize(("method", "path"), ADMIN)
async def test_no_page_reaches_the_operators_routes(method: str, path: str) -> None:
    """Nor does its preflight, though its site is listed, or the gateway's own."""
    async with serving(ScriptedBackend(), OPEN_TO_PAGE) as served:
        for origin in (PAGE, "http://localhost"):
            for asked in (method, "OPTIONS"):
                status, _, headers = await ask(
                    served,
                    asked,
                    path,
                    Origin=origin,
                    Host="localhost",
                    Access_Control_Request_Method=method,
                )
                assert (status, headers["content-type"]) == (403, "application/problem+json")
                assert "access-control-allow-origin" not in headers


async def test_without_an_origin_nothing_is_said_of_one() -> None:
    """Answers to programs are as they were."""
    async with serving(ScriptedBackend(), OPEN_TO_PAGE) as served:
        _, _, headers = await ask(served, "POST", CHAT)
        assert not {"access-control-allow-origin", "vary"} & headers.keys()


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("allowed_hosts: ['gw:8080']", "must be a name or an address, without scheme and port"),
        ("allowed_hosts: ['http://gw']", "must be a name or an address, without scheme and port"),
        ("allowed_hosts: ['*']", "must be a name or an address, without scheme and port"),
        ("cors: {origins: ['*']}", "must be the origin of a site, such as https://example.com"),
        ("cors: {origins: ['null']}", "must be the origin of a site, such as https://example.com"),
        ("cors: {origins: ['https://a/b']}", "must be the origin of a site"),
    ],
)
def test_mistakes_in_the_lists(server: str, message: str) -> None:
    """Told when the policy is read."""
    with pytest.raises(PolicyError, match=message):
        make_policy(f"server: {{{server}}}")


def test_origins_are_read_as_browsers_write_them() -> None:
    """In lower case, without the port that their scheme has anyway."""
    told = "['HTTPS://App.example:443', 'http://a:8080', 'vscode-webview://x']"
    assert make_policy(f"server: {{cors: {{origins: {told}}}}}").server.cors.origins == (
        "https://app.example",
        "http://a:8080",
        "vscode-webview://x",
    )
