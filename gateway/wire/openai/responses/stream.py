"""A response as events, numbered from 0.

Order and fields: openai 3.57 `types/responses/*_event.py`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from engine.types import TokenLogprobs
from gateway.errors import GatewayError
from gateway.request import Request
from gateway.wire import json_text
from gateway.wire.base import Answer, ToolCall
from gateway.wire.openai.errors import error_fields
from gateway.wire.openai.logprobs import token_logprobs
from gateway.wire.openai.responses import encode
from gateway.wire.sse import KEEPALIVE_COMMENT, encode_event
from policies.pricing import Usage

Kind: TypeAlias = Literal["reasoning", "message", "call"]


class ResponseStream:
    """A `StreamEncoder`: created, in_progress, the events of each item in turn, then completed,
    incomplete or failed.

    One item is open at a time. It closes when another kind of output, or another call, begins.
    """

    def __init__(self, request: Request, *, created_at_s: float) -> None:
        self._request = request
        self._created_at_s = created_at_s
        self._number = 0
        self._done: list[encode.Item] = []
        self._kind: Kind | None = None
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._call = ToolCall("", "")
        self._call_index = -1

    def start(self, usage: Usage) -> bytes:
        body = encode.begun(self._request, created_at_s=self._created_at_s)
        return self._event("response.created", response=body) + self._event(
            "response.in_progress", response=body
        )

    def delta(
        self,
        text: str,
        *,
        thinking: bool = False,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        if self._request.prewarm or not (text or logprobs):
            return b""
        data = self._turn_to("reasoning" if thinking else "message")
        self._text.append(text)
        place = self._place() | {"content_index": 0}
        if thinking:
            return data + self._event("response.reasoning_text.delta", **place, delta=text)
        self._logprobs += logprobs
        return data + self._event(
            "response.output_text.delta", **place, delta=text, logprobs=token_logprobs(logprobs)
        )

    def call(
        self,
        index: int,
        call: ToolCall,
        *,
        begins: bool,
        logprobs: tuple[TokenLogprobs, ...] = (),
        choice: int = 0,
    ) -> bytes:
        data = b""
        if begins:
            data = self._close("completed")
            self._call, self._call_index = ToolCall(call.name, ""), index
            data += self._open("call")
        self._call = ToolCall(self._call.name, self._call.arguments + call.arguments)
        if self._custom or not call.arguments:
            return data
        return data + self._event(
            "response.function_call_arguments.delta", **self._place(), delta=call.arguments
        )

    def finish(self, answer: Answer) -> bytes:
        """The last item is as incomplete as the answer."""
        data = b""
        if not self._request.prewarm and self._kind is None and not self._done:
            data = self._open("message")
        cut = answer.reason in encode.INCOMPLETE and not self._request.prewarm
        data += self._close("incomplete" if cut else "completed")
        body = encode.finished(self._request, answer, self._done, created_at_s=self._created_at_s)
        return data + self._event(f"response.{body['status']}", response=body)

    def error(self, error: GatewayError) -> bytes:
        """`response.failed` for readers of events, then the nested form, which the official clients
        raise on."""
        fields = error_fields(error, input_field="input")
        body = encode.failed(self._request, error, created_at_s=self._created_at_s)
        return self._event("response.failed", response=body) + self._event("error", error=fields)

    def keepalive(self) -> bytes:
        return KEEPALIVE_COMMENT

    # One item -------------------------------------------------------------------------------------

    def _turn_to(self, kind: Kind) -> bytes:
        return b"" if self._kind == kind else self._close("completed") + self._open(kind)

    def _open(self, kind: Kind) -> bytes:
        self._kind, self._text, self._logprobs = kind, [], []
        data = self._event(
            "response.output_item.added",
            output_index=len(self._done),
            item=self._item("in_progress", None),
        )
        return data if kind == "call" else data + self._part_event("added", "")

    def _close(self, status: str) -> bytes:
        """The events that end the open item, which joins the output."""
        if self._kind is None:
            return b""
        text = "".join(self._text)
        data = (
            self._end_call()
            if self._kind == "call"
            else self._end_text(text) + self._part_event("done", text)
        )
        item = self._item(status, text)
        data += self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._kind = None
        return data

    def _end_text(self, text: str) -> bytes:
        place = self._place() | {"content_index": 0}
        if self._kind == "reasoning":
            return self._event("response.reasoning_text.done", **place, text=text)
        shown = token_logprobs(self._logprobs)
        return self._event("response.output_text.done", **place, text=text, logprobs=shown)

    def _end_call(self) -> bytes:
        if not self._custom:
            name = encode.called(self._request, self._call)["name"]
            call = {"name": name, "arguments": self._call.arguments}
            return self._event("response.function_call_arguments.done", **self._place(), **call)
        text = encode.custom_input(self._call.arguments)
        delta = self._event("response.custom_tool_call_input.delta", **self._place(), delta=text)
        return delta + self._event(
            "response.custom_tool_call_input.done", **self._place(), input=text
        )

    def _part_event(self, phase: Literal["added", "done"], text: str) -> bytes:
        thinking = self._kind == "reasoning"
        part = (
            {"type": "reasoning_text", "text": text}
            if thinking
            else encode.text_part(text, tuple(self._logprobs))
        )
        return self._event(
            f"response.content_part.{phase}", **self._place(), content_index=0, part=part
        )

    def _item(self, status: str, text: str | None) -> encode.Item:
        """The open item as it is shown; without text or arguments when it opens (`text` None)."""
        index = len(self._done)
        if self._kind == "call":
            call = ToolCall(self._call.name, "") if text is None else self._call
            return encode.call_item(self._request, index, self._call_index, call, status)
        if self._kind == "reasoning":
            return encode.reasoning_item(self._request, index, text)
        return encode.message_item(self._request, index, status, text, tuple(self._logprobs))

    @property
    def _custom(self) -> bool:
        return encode.is_custom(self._request, self._call)

    def _place(self) -> dict[str, Any]:
        item = self._item("in_progress", None)
        return {"item_id": item["id"], "output_index": len(self._done)}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return encode_event(
            json_text.dumps({"type": kind, "sequence_number": number} | fields), kind
        )
