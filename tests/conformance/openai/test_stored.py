"""Responses that outlive their request, on the real engine: made in the background, compacted,
named instead of sent."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from tests.conformance.openai.asking import MODEL, Asker, filler, item, said, user

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]


def test_a_background_response_is_the_answer(gpt: openai.OpenAI) -> None:
    """The same text as one that is waited for, by polling and from its events; the second one reads
    the first one's prefix."""
    turn: Any = [item(user(filler(), "Say something."))]
    more: dict[str, Any] = {"model": MODEL, "input": turn, "max_output_tokens": 6, "temperature": 0}
    waited = gpt.responses.create(**more)
    later = gpt.responses.create(**more, background=True)
    assert later.status == "queued"
    deadline_s = time.monotonic() + 120
    while (done := gpt.responses.retrieve(later.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline_s
    assert (done.id, done.output_text) == (later.id, waited.output_text)
    assert waited.usage is not None
    assert done.usage is not None
    assert (
        done.usage.input_tokens_details.cached_tokens
        == waited.usage.input_tokens_details.cache_write_tokens
        > 64
    )
    events = list(gpt.responses.retrieve(later.id, stream=True, starting_after=1))
    assert [event.sequence_number for event in events] == list(range(2, 2 + len(events)))
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta")
        == waited.output_text
    )


def test_compacting_reads_the_conversation(responses: Asker, gpt: openai.OpenAI) -> None:
    """The summary is asked for behind the conversation, whose prefix is not computed again; what
    comes back can be sent."""
    turns = [said("developer", "Be brief."), user(filler())]
    written = responses(*turns).written
    raw = gpt.responses.with_raw_response.compact(
        model=MODEL, input=[item(turn) for turn in turns], extra_body={"max_output_tokens": 8}
    )
    usage = raw.parse().usage
    assert usage.input_tokens_details.cached_tokens == written > 64
    assert usage.output_tokens <= 8
    output: Any = raw.http_response.json()["output"]
    assert [each["type"] for each in output] == ["message", "compaction"]
    response = gpt.responses.create(
        model=MODEL, input=[*output, item(user("Go on."))], max_output_tokens=1
    )
    assert response.usage is not None
    assert response.usage.input_tokens > written / 2


def test_named_items_read_their_prefix(gpt: openai.OpenAI) -> None:
    """By reference the prompt is the one that was sent, and is read as far as it was written."""
    first = gpt.responses.create(model=MODEL, input=filler(), max_output_tokens=1)
    assert first.usage is not None
    (asked,) = gpt.responses.input_items.list(first.id).data
    named: Any = [{"type": "item_reference", "id": each.id} for each in (asked, *first.output)]
    second = gpt.responses.create(
        model=MODEL, input=[*named, item(user("And then?"))], max_output_tokens=1
    )
    assert second.usage is not None
    written = first.usage.input_tokens_details.cache_write_tokens
    assert second.usage.input_tokens_details.cached_tokens == written > 64
