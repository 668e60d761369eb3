"""Answers in the shape of legacy Completions, whole and streamed.

Source: openai 3.57 `types/completion.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import orjson

from engine.types import TokenLogprobs
from gateway.request import Request
from gateway.wire.base import Answer
from gateway.wire.openai.encode import FINISH_REASONS, ChunkStream
from gateway.wire.openai.logprobs import logprob, token_text
from gateway.wire.openai.options import CompletionsOptions
from gateway.wire.openai.usage import chat_usage
from policies.pricing import Usage


def encode_answer(request: Request, answer: Answer, *, created_at_s: float) -> bytes:
    """One whole `text_completion`; with `echo` its prompt stands before each text."""
    choices = [
        {
            "index": i,
            "text": _echo(request, i) + each.text,
            "logprobs": legacy_logprobs(each.logprobs, 0)
            if request.sampling.num_logprobs is not None
            else None,
            "finish_reason": FINISH_REASONS[each.reason],
        }
        for i, each in enumerate((answer, *answer.others))
    ]
    return orjson.dumps(
        _envelope(request, created_at_s)
        | {"choices": choices, "usage": chat_usage(request, answer)}
    )


class TextStream(ChunkStream):
    """A `StreamEncoder`: pieces of text per choice, the finish reason, the usage if asked for,
    `[DONE]`."""

    input_field = "prompt"

    def __init__(self, request: Request, *, created_at_s: float) -> None:
        super().__init__(request, created_at_s=created_at_s)
        self._envelope = _envelope(request, created_at_s)
        self._num_characters = [0] * request.num_answers

    def start(self, usage: Usage) -> bytes:
        echoes = [_echo(self._request, i) for i in range(self._request.num_answers)]
        return b"".join(self._text(echo, choice=i) for i, echo in enumerate(echoes) if echo)

    def delta(
        self,
        text: str,
        *,
        thinking: bool = False,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        return self._text(text, choice=choice, logprobs=logprobs) if text or logprobs else b""

    def _end(self, reason: str, *, choice: int) -> bytes:
        return self._text("", choice=choice, finish_reason=reason)

    def _text(
        self,
        text: str,
        *,
        choice: int,
        finish_reason: str | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> bytes:
        shown = legacy_logprobs(logprobs, self._num_characters[choice]) if logprobs else None
        self._num_characters[choice] += sum(len(token_text(each.chosen)) for each in logprobs)
        return self._chunk(
            {"index": choice, "text": text, "logprobs": shown, "finish_reason": finish_reason}
        )


def legacy_logprobs(found: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
    """Four lists of one length. `text_offset` counts characters of the answer, from `offset` on."""
    tokens = [token_text(each.chosen) for each in found]
    offsets = list(accumulate(map(len, tokens[:-1]), initial=offset)) if tokens else []
    return {
        "tokens": tokens,
        "token_logprobs": [logprob(each.chosen) for each in found],
        "top_logprobs": [{token_text(top): logprob(top) for top in each.top} for each in found],
        "text_offset": offsets,
    }


def _echo(request: Request, index: int) -> str:
    """The text before answer number `index`."""
    echoes = request.options_of(CompletionsOptions).echo
    return echoes[index // request.num_choices] if echoes else ""


def _envelope(request: Request, created_at_s: float) -> dict[str, Any]:
    return {
        "id": f"cmpl-{request.id.removeprefix('req_')}",
        "object": "text_completion",
        "created": int(created_at_s),
        "model": request.model,
        "system_fingerprint": None,
    }
