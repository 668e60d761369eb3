"""Request bodies in content encodings: several members, bounds, and encodings nobody knows here."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.http import body
from gateway.http.encodings import MAX_MEMBERS, PIECE_NBYTES, Decoder, decoders
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import ANTHROPIC, OPENAI, Served, anthropic_body, openai_body, serving

MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
BODIES: dict[str, dict[str, object]] = {
    MESSAGES: anthropic_body(),
    CHAT: openai_body(),
    RESPONSES: {"model": "gpt-5.6", "input": "Hi"},
}
HEADERS = {MESSAGES: ANTHROPIC, CHAT: OPENAI, RESPONSES: OPENAI}
EMPTY = gzip.compress(b"", mtime=0)


async def post(served: Served, path: str, data: Any, encoding: str) -> tuple[int, Any, Any]:
    """Status, JSON, headers."""
    headers = HEADERS[path] | {"Content-Encoding": encoding}
    async with served.http.post(path, data=data, headers=headers) as response:
        return response.status, orjson.loads(await response.read()), response.headers


def members(text: bytes, size: int) -> bytes:
    """A gzip member for every `size` bytes."""
    cut = (text[at : at + size] for at in range(0, len(text), size))
    return b"".join(gzip.compress(piece, mtime=0) for piece in cut)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
async def test_gzip_of_several_members(path: str, encoding: str) -> None:
    """One after another they are one body, empty ones among them, however the bytes arrive."""
    text = orjson.dumps(BODIES[path])
    packed = EMPTY + members(text, 7) + EMPTY

    async def dribbled() -> Any:
        for at in range(0, len(packed), 11):
            yield packed[at : at + 11]
            await asyncio.sleep(0)

    async with serving(ScriptedBackend()) as served:
        for data in (packed, dribbled()):
            assert (await post(served, path, data, encoding))[0] == 200


@pytest.mark.parametrize("path", BODIES)
async def test_members_that_are_damaged(path: str) -> None:
    """A later one that is cut, broken or no member at all is a 400, as the first is."""
    whole = gzip.compress(orjson.dumps(BODIES[path]))
    async with serving(ScriptedBackend()) as served:
        for more in (EMPTY[:-1], EMPTY[:5], b"x", b"\0" * 40, EMPTY[:-4] + b"abcd"):
            status, told, _ = await post(served, path, whole + more, "gzip")
            assert status == 400, more
            assert "gzip" in told["error"]["message"]


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_members_share_the_bounds_of_a_body(path: str) -> None:
    """Together they may not be larger than one; nor may there be any number of empty ones."""
    async with serving(ScriptedBackend(), "server: {max_body: 300000}") as served:
        packed = members(b" " * 400_000, 100_000)
        assert (await post(served, path, packed, "gzip"))[0] == 413
        status, told, _ = await post(served, path, EMPTY * (MAX_MEMBERS + 1), "gzip")
        assert (status, "members" in told["error"]["message"]) == (400, True)


async def test_members_count_in_the_budget() -> None:
    """What they become does, before it is there."""
    policy = "server: {memory: {bytes: 1MiB}}"
    async with serving(ScriptedBackend(), policy) as served:
        packed = members(b'{"x":"' + b" " * 2_000_000 + b'"}', 200_000)
        assert len(packed) < 20_000
        assert (await post(served, CHAT, packed, "gzip"))[0] == 413


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("encoding", ["br", "deflate", "compress", "gzip, gzip", "x" * 3000])
async def test_what_nobody_decodes_here(path: str, encoding: str) -> None:
    """The answer names what is decoded (RFC 9110, section 15.5.16)."""
    async with serving(ScriptedBackend()) as served:
        data = zlib.compress(orjson.dumps(BODIES[path]))
        status, told, headers = await post(served, path, data, encoding)
        assert status == (400 if path == MESSAGES else 415)
        assert headers["Accept-Encoding"].split(", ") == list(decoders())
        assert "gzip" in told["error"]["message"]
        assert len(told["error"]["message"]) < 300


def test_a_bomb_is_decoded_no_further_than_it_is_asked_for() -> None:
    """A piece at a time, each of at most so many bytes."""
    pieces = decoders()["gzip"]().decoded(gzip.compress(b" " * 50_000_000))
    assert [len(next(pieces)) for _ in range(3)] == [PIECE_NBYTES] * 3


# zstd ---------------------------------------------------------------------------------------------


@pytest.fixture
def zstd() -> Any:
    """Python's own module, or its backport, where one of them is there."""
    try:
        return pytest.importorskip("compression.zstd")
    except pytest.skip.Exception:
        return pytest.importorskip("backports.zstd")


@pytest.mark.parametrize("path", BODIES)
async def test_zstd(path: str, zstd: Any) -> None:
    """Whole, of several frames, in pieces; a cut or broken one is a 400."""
    text = orjson.dumps(BODIES[path])
    packed = zstd.compress(text[:9]) + zstd.compress(b"") + zstd.compress(text[9:])
    async with serving(ScriptedBackend()) as served:
        for data in (zstd.compress(text), packed):
            assert (await post(served, path, data, "zstd"))[0] == 200
        for data in (packed[:-1], b"no zstd", packed + b"x"):
            assert (await post(served, path, data, "zstd"))[0] == 400


async def test_zstd_is_bounded(zstd: Any) -> None:
    """By size, by window, and by the piece."""
    bomb = zstd.compress(b" " * 50_000_000)
    pieces = decoders()["zstd"]().decoded(bomb)
    assert all(len(next(pieces)) <= PIECE_NBYTES for _ in range(3))
    options = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    wide = zstd.ZstdCompressor(options=options)
    far = wide.compress(b"{}") + wide.flush()
    async with serving(ScriptedBackend()) as served:
        assert (await post(served, CHAT, bomb, "zstd"))[0] == 413
        assert (await post(served, CHAT, far, "zstd"))[0] == 400


@pytest.mark.parametrize("path", BODIES)
async def test_without_a_library_zstd_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the answer does not name it."""
    only: dict[str, Callable[[], Decoder]] = {"gzip": decoders()["gzip"]}
    monkeypatch.setattr(body, "DECODERS", only)
    async with serving(ScriptedBackend()) as served:
        status, _, headers = await post(served, path, b"\x28\xb5\x2f\xfd", "zstd")
        assert (status, headers["Accept-Encoding"]) == (400 if path == MESSAGES else 415, "gzip")


def test_an_end_within_a_member_is_an_error() -> None:
    """Nothing at all is none."""
    decoder = decoders()["gzip"]()
    decoder.finish()
    read: Iterator[bytes] = decoder.decoded(EMPTY[:12])
    assert b"".join(read) == b""
    with pytest.raises(InvalidRequest, match="ends early"):
        decoder.finish()
