"""`/v1/responses/compact`:
a conversation as its user's messages and one item that stands for all the rest.

The model writes the summary when it is asked for one behind the conversation, so that the
conversation's prefix is read from the cache and not computed again. Source: openai 3.57
`types/responses/compacted_response.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from engine.prompt.types import Message, TextPart
from gateway.request import Request
from gateway.wire.base import Answer
from gateway.wire.fields import FieldError, Node
from gateway.wire.openai.errors import from_field
from gateway.wire.openai.messages import missing
from gateway.wire.openai.responses import ResponsesWire, encode
from gateway.wire.openai.responses.parse import decode_shallow
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
"""What a request to compact shares with one for a response, besides its input. The limit is not in
the API, and obeyed."""

ASKING: Final = (
    "Summarize the conversation above so that it can go on without it. Keep the user's goals and "
    "wishes, what was decided and "
    "done, what is still open, and every name, number and path that matters, as it stood. Answer "
    "with the summary alone."
)
MAX_SUMMARY_TOKENS: Final = 4096


class CompactWire(ResponsesWire):
    """A `RememberingWire` whose answers are compacted conversations. Nothing of them is stored."""

    def parse(self, body: bytes, headers: Mapping[str, str], *, request_id: str) -> Request:
        try:
            asked = _asking(decode_shallow(body))
        except FieldError as error:
            raise from_field(error) from None
        return super().parse(orjson.dumps(asked), headers, request_id=request_id)

    def encode_answer(self, request: Request, answer: Answer, *, created_at_s: float) -> bytes:
        name: str = request.wire_options["response_id"]
        *messages, _ = request.prompt.messages
        owner = name.removeprefix("resp_")
        said = [message for message in messages if message.role == "user"]
        items = [_user_item(f"msg_{owner}_{i}", message) for i, message in enumerate(said)]
        items.append(
            {"id": f"cmp_{owner}", "type": "compaction", "encrypted_content": sealed(answer.text)}
        )
        return orjson.dumps(
            {
                "id": name,
                "object": "response.compaction",
                "created_at": int(created_at_s),
                "output": items,
                "usage": encode.usage(request, answer),
            }
        )


def _asking(body: Node) -> dict[str, Any]:
    """The body of the response that is the summary."""
    given = body.value.get("input")
    if given is None and not body.has("previous_response_id"):
        raise missing(body, "input")
    items = (
        [{"role": "user", "content": given}]
        if type(given) is str
        else [node.value for node in body.children("input")]
    )
    asked = {"max_output_tokens": MAX_SUMMARY_TOKENS} | {
        name: body.value[name] for name in FIELDS if body.has(name)
    }
    return asked | {"input": [*items, {"role": "user", "content": ASKING}], "store": False}


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
