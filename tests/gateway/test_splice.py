"""The model id of a body: found, and replaced without touching another byte."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.upstream.splice import summarize, with_model

KEYS = st.sampled_from(["model", "a", "mod", 'mo"del', "stream", "é"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just('"model":"x"'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.tuples(
    st.dictionaries(KEYS.filter(lambda key: key != "model"), VALUES, max_size=3),
    st.dictionaries(st.just("z"), VALUES),
)


@given(
    parts=BODIES,
    model=st.text(max_size=9),
    new=st.text(max_size=9),
    ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_only_the_model_changes(
    parts: tuple[Any, Any], model: str, new: str, ascii: bool, indent: int | None
) -> None:
    """Whatever else is in a body, and however it is written: what is read is the model, and the
    rest keeps its bytes."""
    content = parts[0] | {"model": model} | parts[1]
    body = json.dumps(content, ensure_ascii=ascii, indent=indent).encode("utf-8", "replace")
    asked = summarize(body)
    if asked is None:  # a text that is no Unicode
        return
    assert asked.model == orjson.loads(body)["model"]
    spliced = with_model(body, new.encode("utf-8", "replace").decode())
    assert orjson.loads(spliced) == orjson.loads(body) | {
        "model": new.encode("utf-8", "replace").decode()
    }
    old = json.dumps(model, ensure_ascii=ascii).encode("utf-8", "replace")
    assert len(spliced) - len(body) == len(
        orjson.dumps(new.encode("utf-8", "replace").decode())
    ) - len(old)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', ("a", False)),
        (b' {"stream" : true, "model" : "a"} ', ("a", True)),
        (b'{"stream":"true","model":"a"}', ("a", False)),
        (b'{"mod\\u0065l":"a"}', ("a", False)),
        (b'{"tools":[{"model":"b"}],"model":"a","x":{"model":"c"}}', ("a", False)),
        (b'{"model":5}', None),
        (b'{"model":"a"', None),
        (b'["model"]', None),
        (b'"model"', None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_what_a_body_wants(body: bytes, expected: tuple[str, bool] | None) -> None:
    """The top level's own model and stream; None for what is no such body."""
    assert summarize(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","mod\\u0065l":"b"}',
        b'{"\\u006dodel":"a","x":[{"model":1}],"\\u006dodel":"b"}',
    ],
)
def test_two_models_are_none(body: bytes) -> None:
    """Readers differ in which one they take: what is checked here must be what is served there."""
    with pytest.raises(InvalidRequest, match="more than once"):
        summarize(body)
