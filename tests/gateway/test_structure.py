"""Values and levels of a JSON text are counted as they are, however it is cut,
and large texts decode as small ones.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BodyTooLarge, InvalidRequest
from gateway.wire import pieces, structure
from gateway.wire.structure import MAX_DEPTH, check_structure

TEXTS = st.text(st.sampled_from('a"\\[]{},:\né\u2028'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def num_values(value: Any) -> int:
    """Counted as documented: every value, and an empty object or array as two."""
    members = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else None
    )
    if members is None:
        return 1
    return 1 + (sum(map(num_values, members)) or 1)


@pytest.fixture(params=[2, 3, 7, structure._PIECE])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that are looked at, and decoded, at a time."""
    monkeypatch.setattr(structure, "_PIECE", request.param)
    monkeypatch.setattr(pieces, "PIECE_NBYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("piece")
def test_values_are_counted() -> None:
    """The exact number passes and one less does not, whatever stands in strings."""

    @given(VALUES)
    @example(['\\"', "\\\\", "\\", {"[": ["]"]}])
    def check(value: Any) -> None:
        body, num = orjson.dumps(value), num_values(value)
        check_structure(body, num)
        with pytest.raises(BodyTooLarge, match=f"more than {num - 1} JSON values"):
            check_structure(body, num - 1)

    check()


@pytest.mark.usefixtures("piece")
def test_large_texts_decode_as_small_ones() -> None:
    """In pieces or in one call; what is no JSON is an error either way."""

    @given(VALUES, st.integers(0, 30))
    @example({"a": [1, "\\"]}, 0)
    def check(value: Any, num_cut: int) -> None:
        body = orjson.dumps(value)
        assert pieces.loads(body) == value
        cut = body[: len(body) - num_cut]
        try:
            expected = orjson.loads(cut)
        except orjson.JSONDecodeError:
            with pytest.raises(orjson.JSONDecodeError):
                pieces.loads(cut)
        else:
            assert pieces.loads(cut) == expected

    check()


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "a": [2]}',
        b'{"a": [1e99, -0.0, 12345678901234567890]}',
        b'["\\u00e9"]',
        b"[ ]",
        b" {} ",
    ],
)
def test_what_is_unusual_decodes_alike(text: bytes) -> None:
    """Names given twice, large numbers, escapes, spaces."""
    assert repr(pieces.loads(text)) == repr(orjson.loads(text))


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize(
    "text",
    [
        b'["\\ud800"]',
        b'["\xff"]',
        b'{"\xff": 1}',
        b"[1,]",
        b'{"a": 01}',
        b"[NaN]",
        b"[1] 2",
        b"",
    ],
)
def test_what_is_wrong_is_refused_alike(text: bytes) -> None:
    """Half characters, bytes that are none, and what only other languages take."""
    for loads in (orjson.loads, pieces.loads):
        with pytest.raises(orjson.JSONDecodeError):
            loads(text)


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize(("open", "close"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]":', b"}]")])
def test_levels_are_counted(open: bytes, close: bytes) -> None:
    """Behind many shallow ones, and where nothing is closed."""
    per = open.count(b"[") + open.count(b"{")
    num = MAX_DEPTH // per
    for inner in (b"0", b'"' + b"[" * 500 + b'"'):
        check_structure(open * num + inner + close * num, 10_000)
        with pytest.raises(InvalidRequest, match=f"nested more than {MAX_DEPTH} levels"):
            check_structure(open * (num + 1) + inner, 10_000)
    check_structure(b"[" + b"[[]]," * 2_000 + b"[]]", 100_000)
