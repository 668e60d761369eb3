"""What goes wrong is told in the caller's own format, with the provider's status,
and never as a 500.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import Any

import pytest
from anthropic._error_classes import ERROR_CLASSES

from gateway.errors import (
    BadFormat,
    BadPrompt,
    ContextExceeded,
    EngineFailed,
    GatewayError,
    Overloaded,
)
from tests.fakes.backend import Script, ScriptedBackend
from tests.gateway.serving import ANTHROPIC, OPENAI, Served, anthropic_body, openai_body, serving

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
BODIES: dict[str, dict[str, object]] = {MESSAGES: anthropic_body(), CHAT: openai_body()}
HEADERS = {MESSAGES: ANTHROPIC, CHAT: OPENAI}


def error_of(path: str, content: Any) -> tuple[str, str]:
    """The error's type and message, after checking that the shape is the provider's."""
    if path == MESSAGES:
        assert content["type"] == "error"
        assert content["request_id"].startswith("req_")
    else:
        assert {"message", "type", "param", "code"} <= set(content["error"])
    return content["error"]["type"], content["error"]["message"]


async def post(
    served: Served, path: str, body: object, **headers: str
) -> tuple[int, tuple[str, str], Any]:
    """Status, (type, message), headers of a request that is refused."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with served.http.post(path, data=data, headers=HEADERS[path] | headers) as response:
        assert "Cache-Status" not in response.headers
        assert response.headers["pcg-request-id"]
        assert response.headers["Content-Type"].startswith("application/json")
        return response.status, error_of(path, await response.json()), response.headers


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"model": 1}',
        b"\xff\xfe",
        b'{"model": "claude-sonnet-5", "max_tokens": 5, "messages": []}',
        b'{"model": "claude-sonnet-5", "max_tokens": "5", "messages": "Hi"}',
        b'{"model": "claude-sonnet-5", "max_tokens": 5, "messages": [{"role": "user", "content": '
        b"5}]}",
    ],
)
async def test_bad_bodies(path: str, body: bytes) -> None:
    """Malformed JSON, wrong types and empty messages are a 400 and never reach the backend."""
    backend = ScriptedBackend()
    async with serving(backend) as served:
        status, (kind, message), _ = await post(served, path, body)
        assert (status, kind) == (400, "invalid_request_error")
        assert message
        assert backend.requests == []


@pytest.mark.parametrize("sent", [b"", b'{"mod'])
@pytest.mark.parametrize(
    "path", [MESSAGES, CHAT, "/v1/messages/count_tokens", "/admin/cache/flush"]
)
async def test_a_body_that_does_not_end(path: str, sent: bytes) -> None:
    """Nobody waits for the rest of it longer than the policy says."""
    request = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode() + sent
    )
    async with (
        serving(ScriptedBackend(), "server: {body_timeout: 20ms}") as served,
        asyncio.timeout(20),
    ):
        reader, writer = await asyncio.open_connection(served.listener.host, served.listener.port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        content = await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
        writer.close()
        await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"nothing more of the body came within 0.02 s" in content
    if path in BODIES:
        error_of(path, json.loads(content))


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_unknown_model(path: str) -> None:
    """A model id that no pattern matches is a 404."""
    async with serving(ScriptedBackend()) as served:
        status, (_, message), _ = await post(served, path, BODIES[path] | {"model": "llama-9"})
        assert status == 404
        assert "llama-9" in message


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "anthropic", "openai"),
    [
        (Overloaded("full", retry_after_s=2.0), 529, 503),
        (ContextExceeded(9000, 8192), 400, 400),
        (BadPrompt("roles must alternate", path="messages"), 400, 400),
        (BadFormat("Unimplemented keys"), 400, 400),
        (EngineFailed("broken"), 500, 500),
        (ValueError("a bug that quotes the prompt"), 500, 500),
    ],
)
async def test_errors_before_the_answer(
    path: str, stream: bool, error: Exception, anthropic: int, openai: int
) -> None:
    """Errors before `Started` have their real status, streamed or not; bugs are not quoted to the
    client."""
    async with serving(ScriptedBackend(Script(error=error))) as served:
        status, (_, message), headers = await post(served, path, BODIES[path] | {"stream": stream})
        assert status == (anthropic if path == MESSAGES else openai)
        assert "quotes" not in message
        if isinstance(error, GatewayError) and error.retry_after_s:
            assert headers["Retry-After"] == "2"
        (record,) = served.records
        assert (record.outcome, record.bill) == ("failed", None)


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_an_endless_model_id_names_no_model(path: str) -> None:
    """Though a pattern of the policy matches it: it is told and remembered in part only."""
    async with serving(ScriptedBackend()) as served:
        name = ("claude-" if path == MESSAGES else "gpt-") + "x" * 100_000
        status, (_, message), _ = await post(served, path, BODIES[path] | {"model": name})
        assert status == 404
        assert len(message) < 400
        (record,) = served.records
        assert record.model == name[:256]


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_oversized_bodies(path: str) -> None:
    """Too large as sent, announced or not, or once decompressed: a 413 either way."""
    async with serving(ScriptedBackend(), "server: {max_body: 1000}") as served:
        large = json.dumps(BODIES[path] | {"metadata": {"x": "y" * 2000}}).encode()
        assert (await post(served, path, large))[0] == 413
        assert (await post(served, path, gzip.compress(large), **{"Content-Encoding": "gzip"}))[
            0
        ] == 413

        async def chunks() -> Any:
            yield large[:700]
            yield large[700:]

        async with served.http.post(path, data=chunks(), headers=HEADERS[path]) as response:
            assert response.status == 413


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_compressed_bodies(path: str) -> None:
    """gzip is accepted; broken and truncated gzip are a 400, and so is another encoding in
    Anthropic's format, whose SDK has a class for that; a 415 in OpenAI's."""
    async with serving(ScriptedBackend()) as served:
        packed = gzip.compress(json.dumps(BODIES[path]).encode())
        headers = HEADERS[path] | {"Content-Encoding": "gzip"}
        async with served.http.post(path, data=packed, headers=headers) as response:
            assert response.status == 200
        for data, encoding in (
            (packed[:-9], "gzip"),
            (b"no gzip", "gzip"),
            (packed + b"x", "gzip"),
            (packed, "br"),
        ):
            status, (kind, _), _ = await post(served, path, data, **{"Content-Encoding": encoding})
            unknown = 400 if path == MESSAGES else 415
            expected = 400 if encoding == "gzip" else unknown
            assert (status, kind) == (expected, "invalid_request_error")


@pytest.mark.parametrize(
    ("data", "encoding", "code"),
    [
        (b"no gzip", "gzip", "request_body_encoding_invalid"),
        (b"{}", "br", "request_body_encoding_unsupported"),
        (gzip.compress(b" " * 2000), "gzip", "request_body_too_large_after_decoding"),
    ],
)
async def test_errors_of_encodings_have_classes_of_their_own(
    data: bytes, encoding: str, code: str
) -> None:
    """The SDK tells them by status and `details.error_code`."""
    async with serving(ScriptedBackend(), "server: {max_body: 1000}") as served:
        headers = ANTHROPIC | {"Content-Encoding": encoding}
        async with served.http.post(MESSAGES, data=data, headers=headers) as response:
            body = await response.json()
        assert body["error"]["details"] == {"error_code": code}
        assert (response.status, code) in ERROR_CLASSES


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "shape"),
    [
        ("GET", "/v1/messages", {}, 405, MESSAGES),
        ("GET", "/v1/chat/completions", {}, 405, CHAT),
        ("POST", "/v1/messages/batches", {}, 404, MESSAGES),
        ("POST", "/v1/embeddings", {}, 404, CHAT),
        ("GET", "/v2/anything", {"x-api-key": "k"}, 404, MESSAGES),
        ("GET", "/v2/anything", {"anthropic-version": "2023-06-01"}, 404, MESSAGES),
        ("DELETE", "/v1/models", {}, 405, CHAT),
        ("GET", "/v1/models/llama", {"x-api-key": "k"}, 404, MESSAGES),
    ],
)
async def test_unknown_paths_and_methods(
    method: str, path: str, headers: dict[str, str], status: int, shape: str
) -> None:
    """404 and 405 speak the format that path or headers show."""
    async with (
        serving(ScriptedBackend()) as served,
        served.http.request(method, path, headers=headers) as response,
    ):
        assert response.status == status
        error_of(shape, await response.json())
        assert status != 405 or response.headers["Allow"]


async def test_probes() -> None:
    """Clients that knock with HEAD or GET on the root are let in."""
    async with serving(ScriptedBackend()) as served:
        async with served.http.head("/") as response:
            assert (response.status, await response.read()) == (200, b"")
        async with served.http.get("/") as response:
            assert response.status == 200
            assert response.headers["Server"] == "pcg"
            assert response.headers["pcg-request-id"]


TENANTS = "tenants: [{name: a, keys: [key-of-a]}, {name: b, keys: [key-of-b]}]"


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"Authorization": "Basic a"}],
)
async def test_keys_are_needed_where_there_are_tenants(path: str, headers: dict[str, str]) -> None:
    """No key and an unknown key are a 401, before the body is looked at."""
    async with serving(ScriptedBackend(), TENANTS) as served:
        assert (await post(served, path, b"{", **headers))[0] == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
async def test_keys_are_needed_to_look_things_up(method: str, path: str) -> None:
    """A 401 in the provider's shape, and a record of it."""
    async with serving(ScriptedBackend(), TENANTS) as served:
        async with served.http.request(method, path) as response:
            assert response.status == 401
            error_of("openai", await response.json())
        assert [record.error for record in served.records] == ["Unauthenticated"]


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"Authorization": "Bearer key-of-a"}, "a"),
        ({"x-api-key": "key-of-b"}, "b"),
        ({"x-api-key": "key-of-b", "Authorization": "Bearer key-of-a"}, "b"),
    ],
)
async def test_the_key_names_the_tenant(headers: dict[str, str], tenant: str) -> None:
    """`x-api-key` wins over a bearer token; the tenant reaches the backend."""
    backend = ScriptedBackend()
    async with serving(backend, TENANTS) as served:
        async with served.http.post(CHAT, json=openai_body(), headers=headers) as response:
            assert response.status == 200
        assert [request.tenant for request in backend.requests] == [tenant]


async def test_the_queue_is_bounded() -> None:
    """When every place is taken the next request is told so at once, and places are given back."""
    policy = "models: [{engine: {max_queue: 1, max_sequences: 1}}]"
    async with serving(ScriptedBackend(), policy) as served:
        with served.gateway.in_flight.slot(), served.gateway.in_flight.slot():
            status, _, headers = await post(served, MESSAGES, anthropic_body())
            assert (status, headers["Retry-After"]) == (529, "1")
        async with served.http.post(MESSAGES, json=anthropic_body(), headers=ANTHROPIC) as response:
            assert response.status == 200
