"""Upstreams of both formats in a thread of this process:
what they answer follows from the model that a body names.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import orjson

from tests.fakes.upstream import FakeUpstream, Got, Say, say_events, say_json
from tools.corpus.steps import Sent, as_text

ANTHROPIC_USAGE: Final = {
    "input_tokens": 7,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 30,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    "output_tokens": 4,
}
CHAT_USAGE: Final = {
    "prompt_tokens": 100,
    "completion_tokens": 5,
    "total_tokens": 105,
    "prompt_tokens_details": {"cached_tokens": 64},
}
RESPONSES_USAGE: Final = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 32},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 105,
}


class Upstreams:
    """Listens from `__enter__` to `__exit__`."""

    def __init__(self) -> None:
        self.url = ""
        self._fake = FakeUpstream(answer)
        self._told = 0
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def passed(self) -> list[Sent]:
        """What has come since it was last asked."""
        new = self._fake.got[self._told :]
        self._told += len(new)
        return [
            Sent("POST", got.target, tuple(got.headers.items()), as_text(got.body)) for got in new
        ]

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with self._fake.listening():
            self.url = self._fake.url
            self._begun.set()
            await self._over.wait()


def answer(got: Got) -> Say:
    """What the model named in the body says, streamed where the body asks for it."""
    body = json.loads(got.body)
    kind = str(body["model"]).rpartition("-")[2]
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    path = got.target.partition("?")[0].rpartition("/v1/")[2]
    whole, events = _SAID.get(
        path, ({"path": path, "usage": {"prompt_tokens": 3, "total_tokens": 3}}, ())
    )
    if body.get("stream") and events:
        return say_events(*events)
    return say_json(
        whole,
        request_id="up_1",
        x_request_id="up_1",
        retry_after="0",
        x_ratelimit_limit_requests="9",
    )


def _chunk(content: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def _event(content: Mapping[str, Any]) -> bytes:
    return b"event: " + str(content["type"]).encode() + b"\n" + _chunk(content)


_MESSAGE: Final = {
    "id": "msg_up",
    "type": "message",
    "role": "assistant",
    "model": "up",
    "stop_reason": "end_turn",
}
_CHAT: Final = {"id": "chatcmpl-up", "created": 1, "model": "up"}
_RESPONSE: Final = {
    "id": "resp_up",
    "object": "response",
    "status": "completed",
    "output": [],
    "usage": RESPONSES_USAGE,
}
_TEXT: Final = {"type": "text", "text": "Grüß Gott"}
_TURN: Final = {
    "index": 0,
    "message": {"role": "assistant", "content": "Grüß Gott"},
    "finish_reason": "stop",
}

_SAID: Final[Mapping[str, tuple[Mapping[str, Any], tuple[bytes, ...]]]] = {
    "messages": (
        _MESSAGE | {"content": [_TEXT], "usage": ANTHROPIC_USAGE},
        (
            _event(
                {
                    "type": "message_start",
                    "message": _MESSAGE | {"content": [], "usage": ANTHROPIC_USAGE},
                }
            ),
            _event(
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {"type": "text", "text": ""},
                }
            ),
            _event(
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": "Grüß Gott"},
                }
            ),
            _event({"type": "content_block_stop", "index": 0}),
            _event(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": 4},
                }
            ),
            _event({"type": "message_stop"}),
        ),
    ),
    "messages/count_tokens": ({"input_tokens": 42}, ()),
    "chat/completions": (
        _CHAT | {"object": "chat.completion", "choices": [_TURN], "usage": CHAT_USAGE},
        (
            _chunk(
                _CHAT
                | {"choices": [{"index": 0, "delta": {"content": "Grüß"}, "finish_reason": None}]}
            ),
            _chunk(
                _CHAT
                | {
                    "choices": [
                        {"index": 0, "delta": {"content": " Gott"}, "finish_reason": "stop"}
                    ]
                }
            ),
            _chunk(_CHAT | {"choices": [], "usage": CHAT_USAGE}),
            b"data: [DONE]\n\n",
        ),
    ),
    "completions": (
        _CHAT
        | {
            "choices": [{"index": 0, "text": " there", "finish_reason": "stop"}],
            "usage": CHAT_USAGE,
        },
        (_chunk(_CHAT | {"choices": [{"index": 0, "text": " there"}]}), b"data: [DONE]\n\n"),
    ),
    "responses": (_RESPONSE, (_event({"type": "response.completed", "response": _RESPONSE}),)),
    "embeddings": (
        {
            "object": "list",
            "data": [{"embedding": [0.5]}],
            "usage": {"prompt_tokens": 8, "total_tokens": 8},
        },
        (),
    ),
}

_ERROR: Final = {
    "type": "error",
    "error": {"type": "overloaded_error", "message": "Overloaded"},
    "request_id": "req_up",
}
_SPECIAL: Final[Mapping[str, Say]] = {
    "e529": say_json(_ERROR, 529, retry_after="3", request_id="req_up"),
    "e400": say_json(
        {"error": {"message": "no", "type": "invalid_request_error", "param": "x", "code": None}},
        400,
    ),
    "e401": say_json({"error": {"message": "key sk-secret is wrong"}}, 401),
    "e302": Say((b"",), 302, {"Location": "http://127.0.0.1:1/"}),
    "html": Say((b"<h1>Bad gateway</h1>",), 502, {"Content-Type": "text/html"}),
    "nousage": say_json({"choices": []}),
    "nocache": say_json(
        _CHAT | {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 1}}
    ),
    "odd": say_json(
        _CHAT | {"choices": [], "usage": CHAT_USAGE | {"prompt_tokens": 9, "total_tokens": 14}},
        set_cookie="a=b",
        cache_status="origin; hit",
        server_timing="db;dur=5",
        pcg_cache="lie",
    ),
    "gone": Say(cut=True),
}
