"""Reads a request's body within bounds, compressed or not. Knows nothing of what is in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from gateway.budget import Claim
from gateway.errors import BodyLate, BodyTooLarge, UnknownEncoding
from gateway.http.cost import BodyCost
from gateway.http.encodings import PIECE_NBYTES, decoders

DECODERS: Final = decoders()


async def read_body(
    http: web.Request, max_nbytes: int, silence_s: float, claim: Claim | None = None
) -> bytes:
    """The whole body, decoded. Never holds more than `max_nbytes` of it in either form, nor more
    than `claim` is given.

    Raises `BodyTooLarge` when the body as sent or as decoded exceeds `max_nbytes`, or would take
    more memory than one tenant may ever have; `RateLimited` and `Overloaded` when there is no room
    for it now; `BodyLate` when nothing comes for `silence_s` though it has not ended;
    `UnknownEncoding` for an encoding that there is no decoder for, and `InvalidRequest` for a
    damaged body. The server must be set up not to decompress by itself.
    """
    encoding = http.headers.get("Content-Encoding", "identity").strip().lower()
    encoding = "gzip" if encoding == "x-gzip" else encoding
    if encoding not in (*DECODERS, "identity", ""):
        raise UnknownEncoding(encoding, tuple(DECODERS))
    if (http.content_length or 0) > max_nbytes:
        raise _too_large(max_nbytes)
    decoder = DECODERS[encoding]() if encoding in DECODERS else None
    body = bytearray()  # not a list: of a body in tiny pieces, that would be many times as large
    num_sent = 0
    cost = BodyCost()
    async for chunk in _pieces(http, silence_s):
        num_sent += len(chunk)
        if num_sent > max_nbytes:
            raise _too_large(max_nbytes)
        cut = (chunk[i : i + PIECE_NBYTES] for i in range(0, len(chunk), PIECE_NBYTES))
        for piece in decoder.decoded(chunk) if decoder else cut:
            if len(body) + len(piece) > max_nbytes:
                raise _too_large_decoded()
            if claim is not None:
                more = cost.add(piece)
                if claim.nbytes + more > claim.budget.tenant_nbytes:  # to try again is no use
                    message = "the body takes more memory than one client may have (server.memory)"
                    raise BodyTooLarge(message)
                claim.grow(more)
            body += piece
            if decoder:
                await asyncio.sleep(
                    0
                )  # a few bytes become many pieces: others are served in between
    if decoder:
        decoder.finish()
    return bytes(body)


async def _pieces(http: web.Request, silence_s: float) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(silence_s):
                piece = await http.content.readany()
        except TimeoutError:
            raise BodyLate(f"nothing more of the body came within {silence_s:g} s") from None
        if not piece:
            return
        yield piece


def _too_large(max_nbytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body exceeds the maximum of {max_nbytes} bytes")


def _too_large_decoded() -> BodyTooLarge:
    return BodyTooLarge(
        "the body is too large once decoded", code="request_body_too_large_after_decoding"
    )
