"""Bounds on the number of values of a JSON text and on their depth.

They are checked before anything is built of the text.

Pure.

Bytes do not bound what a text becomes: `[],` is three bytes of it and some seventy of memory. A
piece of the text is read at a time, by functions in C that are each over in a fraction of a
millisecond: other threads get on in between.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from gateway.errors import BodyTooLarge, InvalidRequest

MAX_DEPTH: Final = 128
"""Of a whole body. What may be free-form in it has a smaller bound of its own."""

_PIECE: Final = 64 * 1024
_ALL: Final = bytes(range(256))
_NO_BRACKET: Final = bytes(set(_ALL) - set(b"[]{}"))
_STEPS: Final = tuple(
    {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}.get(byte, 0) for byte in _ALL
)


def check_structure(body: bytes, max_values: int) -> None:
    """Raises `BodyTooLarge` for more than `max_values` values, `InvalidRequest` for more than
    `MAX_DEPTH` levels.

    Every member of an object or array is a value, and so is each of those; an empty one counts as
    two. What is no JSON may be counted wrongly from its first fault on, where every parser stops.
    An empty body passes.
    """
    num_values, depth = 1, 0
    inside = escaped = False
    for start in range(0, len(body), _PIECE):
        piece = body[start + escaped : start + _PIECE]
        escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        outside, inside = _outside(piece, inside)
        brackets = outside.translate(None, _NO_BRACKET)
        num_opened = brackets.count(b"[") + brackets.count(b"{")
        num_values += outside.count(b",") + num_opened
        if num_values > max_values:
            raise BodyTooLarge(f"the body holds more than {max_values} JSON values")
        if (
            depth + num_opened > MAX_DEPTH
            and depth + max(accumulate(map(_STEPS.__getitem__, brackets))) > MAX_DEPTH
        ):
            raise InvalidRequest(f"the body is nested more than {MAX_DEPTH} levels deep")
        depth += 2 * num_opened - len(brackets)


def _outside(piece: bytes, inside: bool) -> tuple[bytes, bool]:
    """The part of the piece outside all strings, and whether the piece ends inside a string.

    `inside`: the piece begins inside a string.
    """
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = piece.split(b'"')
    return b"".join(texts[inside::2]), inside ^ (len(texts) % 2 == 0)
