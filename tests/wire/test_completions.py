"""Legacy Completions: what bodies mean, what is refused, and how answers look to the SDK."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Final

import openai
import orjson
import pytest

from engine.types import TokenLogprob, TokenLogprobs
from gateway.errors import InvalidRequest
from gateway.request import Request
from gateway.wire.base import Answer
from gateway.wire.openai.completions import COMPLETIONS_WIRE
from gateway.wire.openai.completions.encode import legacy_logprobs
from policies.pricing import Usage

WIRE: Final = COMPLETIONS_WIRE
USAGE: Final = Usage(input=4, cache_read=64, output=3)
LOGPROBS: Final = (
    TokenLogprobs(
        TokenLogprob(1, -0.5, b"ab"),
        (TokenLogprob(1, -0.5, b"ab"), TokenLogprob(2, -math.inf, b"c")),
    ),
    TokenLogprobs(TokenLogprob(3, -1.0, b"d"), (TokenLogprob(3, -1.0, b"d"),)),
)


def parse(**fields: Any) -> Request:
    return WIRE.parse(
        orjson.dumps({"model": "m", "prompt": "Once"} | fields), {}, request_id="req_1"
    )


@pytest.mark.parametrize(
    ("prompt", "raw"),
    [
        ("Once", "Once"),
        (["Once"], "Once"),
        ([5, 6], (5, 6)),
        ([[5, 6]], (5, 6)),
        ("<|im_start|>", "<|im_start|>"),
        ("", ""),
    ],
)
def test_prompts(prompt: Any, raw: Any) -> None:
    """A text or token ids, alone or as a list of one: given to the model as they are."""
    assert parse(prompt=prompt).prompt.raw == raw


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": 3}, "prompt", "invalid_type"),
        ({"prompt": ["a", [1]]}, "prompt", "invalid_type"),
        ({"prompt": [[1], 2]}, "prompt", "invalid_type"),
        ({"prompt": ["a"] * 10, "n": 128}, "prompt", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt", "invalid_type"),
        ({"prompt": [-1]}, "prompt", "invalid_type"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
        ({"echo": True, "logprobs": 0}, "echo", "unsupported_parameter"),
        ({"echo": True, "prompt": [1]}, "echo", "unsupported_parameter"),
    ],
)
def test_refused_bodies(fields: dict[str, Any], param: str, code: str) -> None:
    """Each names its field."""
    with pytest.raises(InvalidRequest) as told:
        parse(**fields)
    assert (told.value.path, told.value.code) == (param, code)


def test_several_prompts() -> None:
    """Texts or token ids: each is a prompt of its own, in order."""
    texts, ids = parse(prompt=["a", "b", ""], n=2), parse(prompt=[[1], [2, 3]])
    assert [prompt.raw for prompt in (texts.prompt, *texts.other_prompts)] == ["a", "b", ""]
    assert [prompt.raw for prompt in (ids.prompt, *ids.other_prompts)] == [(1,), (2, 3)]
    assert (texts.num_prompts, texts.num_answers, ids.num_answers) == (3, 6, 2)
    assert list(texts.prompt.positions()) == list(texts.other_prompts[0].positions())


def test_sampling() -> None:
    """Sixteen tokens unless said otherwise, as ever; probabilities are a number here."""
    assert parse().sampling.max_tokens == 16
    assert parse(max_tokens=3, logprobs=2, n=2, best_of=2).sampling.num_logprobs == 2
    assert parse(n=2).num_choices == 2


def test_answers() -> None:
    """Valid for the SDK's own type, several answers, the prompt echoed, probabilities in their old
    form."""
    request = parse(n=2, echo=True)
    end = Answer(" upon", "stop", None, USAGE)
    body = WIRE.encode_answer(
        request, replace(end, others=(Answer(" more", "length", None, USAGE),)), created_at_s=5.0
    )
    completion = openai.types.Completion.model_validate_json(body, strict=True)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in completion.choices] == [
        (0, "Once upon", "stop"),
        (1, "Once more", "length"),
    ]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (68, 71)
    probable = WIRE.encode_answer(
        parse(logprobs=2), replace(end, text="abd", logprobs=LOGPROBS), created_at_s=5.0
    )
    told = openai.types.Completion.model_validate_json(probable, strict=True).choices[0].logprobs
    assert told is not None
    assert (told.tokens, told.token_logprobs, told.text_offset) == (
        ["ab", "d"],
        [-0.5, -1.0],
        [0, 2],
    )
    assert told.top_logprobs == [{"ab": -0.5, "c": -9999.0}, {"d": -1.0}]


def test_streams() -> None:
    """Chunks have the whole answer's shape; offsets go on from chunk to chunk; `[DONE]` ends it."""
    request = parse(stream=True, logprobs=1, stream_options={"include_usage": True})
    stream = WIRE.stream(request, created_at_s=5.0)
    pieces = [
        stream.start(USAGE),
        stream.delta("ab", logprobs=LOGPROBS[:1]),
        stream.delta("d", logprobs=LOGPROBS[1:]),
    ]
    body = b"".join([*pieces, stream.finish(Answer("abd", "stop", None, USAGE, logprobs=LOGPROBS))])
    assert body.endswith(b"data: [DONE]\n\n")
    chunks = [orjson.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [choice["text"] for choice in choices] == ["ab", "d", ""]
    assert [choice["logprobs"]["text_offset"] for choice in choices[:2]] == [[0], [2]]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert [chunk["usage"] and chunk["usage"]["prompt_tokens"] for chunk in chunks] == [
        None,
        None,
        None,
        68,
    ]


def test_offsets_of_a_long_answer_cost_no_more_than_its_length() -> None:
    """They are told on the event loop, where others wait."""
    begin_s = time.process_time()
    offsets = legacy_logprobs(LOGPROBS[:1] * 20_000, 5)["text_offset"]
    assert time.process_time() - begin_s < 1.0
    assert (offsets[:2], offsets[-1]) == ([5, 7], 5 + 2 * 19_999)
    assert legacy_logprobs((), 5)["text_offset"] == []


def test_several_prompts_echo_each_their_own() -> None:
    """Whole and streamed: the answers to one prompt follow each other."""
    request = parse(prompt=["x", "y"], n=2, echo=True)
    end = Answer("0", "stop", None, USAGE)
    every = replace(end, others=tuple(replace(end, text=str(i)) for i in range(1, 4)))
    told = orjson.loads(WIRE.encode_answer(request, every, created_at_s=5.0))
    assert [(choice["index"], choice["text"]) for choice in told["choices"]] == [
        (0, "x0"),
        (1, "x1"),
        (2, "y2"),
        (3, "y3"),
    ]
    first = WIRE.stream(request, created_at_s=5.0).start(USAGE)
    chunks = [orjson.loads(line[6:]) for line in first.split(b"\n") if line]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["x", "x", "y", "y"]


def test_echo_streams_first() -> None:
    """The prompt is the first piece of every answer."""
    stream = WIRE.stream(parse(stream=True, echo=True), created_at_s=5.0)
    assert orjson.loads(stream.start(USAGE).removeprefix(b"data: "))["choices"][0]["text"] == "Once"
