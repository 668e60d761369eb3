"""`/v1/responses/compact`:
a conversation as its user's messages and one item that stands for all the rest.

The model writes the summary when it is asked for one behind the conversation, so that the
conversation's prefix is read from the cache and not computed again. Source: openai 3.57
`types/responses/compacted_response.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from engine.prompt.types import Message, TextPart
from gateway.request import Request
from gateway.wire.base import Answer, Endpoint, Wire
from gateway.wire.fields import Node
from gateway.wire.openai.errors import missing
from gateway.wire.openai.responses import encode, responses_wire
from gateway.wire.openai.responses.parse import new_response_id, parse
from gateway.wire.openai.responses.sealed import sealed

FIELDS: Final = (
    "instructions",
    "max_output_tokens",
    "model",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
)
"""Fields, besides the input, that a request to compact shares with one for a response. The limit is
not in the API, and obeyed."""

ASKING: Final = (
    "Summarize the conversation above so that it can go on without it. Keep the user's goals and "
    "wishes, what was decided and "
    "done, what is still open, and every name, number and path that matters, as it stood. Answer "
    "with the summary alone."
)
MAX_SUMMARY_TOKENS: Final = 4096


def compact_wire(new_id: Callable[[], str] = new_response_id) -> Wire:
    """The format, whose answers are compacted conversations. Nothing of them is stored."""
    return replace(
        responses_wire(new_id),
        endpoints=(Endpoint("/v1/responses/compact", "compact"),),
        prefixes=(),
        claims=lambda body: False,
        parse=partial(parse, new_id=new_id, rewrite=_asking),
        encode_answer=_encode_answer,
    )


def _encode_answer(request: Request, answer: Answer, *, created_at_s: float) -> bytes:
    *messages, _ = request.prompt.messages
    owner = request.response_id.removeprefix("resp_")
    users = [message for message in messages if message.role == "user"]
    items = [_user_item(f"msg_{owner}_{i}", message) for i, message in enumerate(users)]
    items.append(
        {"id": f"cmp_{owner}", "type": "compaction", "encrypted_content": sealed(answer.text)}
    )
    return orjson.dumps(
        {
            "id": request.response_id,
            "object": "response.compaction",
            "created_at": int(created_at_s),
            "output": items,
            "usage": encode.usage(request, answer),
        }
    )


def _asking(body: Node) -> Node:
    """The body of the request for the response that is the summary."""
    value = body.value.get("input")
    if value is None and not body.has("previous_response_id"):
        raise missing(body.at("input"))
    items = (
        [{"role": "user", "content": value}]
        if type(value) is str
        else [node.value for node in body.children("input")]
    )
    asked = {"max_output_tokens": MAX_SUMMARY_TOKENS} | {
        name: body.value[name] for name in FIELDS if body.has(name)
    }
    asked |= {"input": [*items, {"role": "user", "content": ASKING}], "store": False}
    return Node(asked, ())


def _user_item(item_id: str, message: Message) -> dict[str, Any]:
    content = [
        {"type": "input_text", "text": part.text}
        for part in message.parts
        if isinstance(part, TextPart)
    ]
    return {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": content,
    }
