"""What OpenAI's clients are told on the real engine besides what was cached: choices,
probabilities, calls, limits, errors."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.conformance.openai.asking import (
    MODEL,
    Asker,
    Served,
    filler,
    flat,
    item,
    said,
    tool,
    user,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]


def test_greedy_answers_are_the_same_in_every_form(served: Served, gpt: openai.OpenAI) -> None:
    """Chat Completions and Responses, whole and streamed, first and cached: one text."""
    turn = user(filler(), "Say something.")
    texts = {
        Asker(served, api, stream)(turn, temperature=0, **{limit: 6}).text
        for api, limit in (("chat", "max_completion_tokens"), ("responses", "max_output_tokens"))
        for stream in (False, True)
    }
    assert len(texts) == 1
    assert texts.pop()


def test_several_answers_are_billed_one_prompt(gpt: openai.OpenAI) -> None:
    """Two answers: the prompt once, both outputs, and with a seed the same ones again."""
    messages: Any = [user(filler())]
    more: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "max_completion_tokens": 4,
        "temperature": 1.5,
        "seed": 7,
    }
    one = gpt.chat.completions.create(**more)
    two = gpt.chat.completions.create(**more, n=2)
    assert one.usage is not None
    assert two.usage is not None
    assert [choice.index for choice in two.choices] == [0, 1]
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens == 2 * one.usage.completion_tokens == 8
    assert two.choices[0].message.content == one.choices[0].message.content
    chunks = list(gpt.chat.completions.create(**more, n=2, stream=True))
    for choice in two.choices:
        streamed = [
            c.delta.content or ""
            for chunk in chunks
            for c in chunk.choices
            if c.index == choice.index
        ]
        assert "".join(streamed) == choice.message.content


def test_logprobs(gpt: openai.OpenAI) -> None:
    """One per token, with its rivals best first; greedy takes the best; streamed and by Responses
    the same numbers."""
    messages: Any = [user("Count to three.")]
    more: dict[str, Any] = {"model": MODEL, "temperature": 0, "top_logprobs": 3}
    chat = {"messages": messages, "max_completion_tokens": 4, "logprobs": True}
    told = gpt.chat.completions.create(**more, **chat)
    found = told.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 4
    for token in found.content:
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert (token.logprob, token.token) == (tops[0], token.top_logprobs[0].token)
        assert math.fsum(math.exp(top) for top in tops) <= 1.001
        assert bytes(token.bytes or []).decode("utf-8", "replace") == token.token
    assert "".join(token.token for token in found.content) == told.choices[0].message.content
    chunks = gpt.chat.completions.create(**more, **chat, stream=True)
    streamed = [
        t for chunk in chunks for c in chunk.choices if c.logprobs for t in c.logprobs.content or []
    ]
    assert [t.to_dict() for t in streamed] == [t.to_dict() for t in found.content]
    response = gpt.responses.create(
        **more, input=messages, max_output_tokens=4, include=["message.output_text.logprobs"]
    )
    part: Any = response.output[0].content[0]  # type: ignore[union-attr]
    assert [t.to_dict() for t in part.logprobs] == [t.to_dict() for t in found.content]


def test_a_required_call_is_made(gpt: openai.OpenAI) -> None:
    """A named function: the answer is its call, whole and streamed, by both APIs; its result can be
    sent back."""
    messages: Any = [user("What is at berth a?")]
    tools: Any = [tool("look")]
    named: Any = {"type": "function", "function": {"name": "look"}}
    more: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "tools": tools,
        "max_completion_tokens": 120,
        "temperature": 0,
    }
    choice = gpt.chat.completions.create(**more, tool_choice=named).choices[0]
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, type(json.loads(call.function.arguments))) == ("look", dict)
    assert choice.finish_reason in ("tool_calls", "stop")
    with gpt.chat.completions.stream(**more, tool_choice=named) as stream:
        built = stream.get_final_completion().choices[0]
    assert built.message.tool_calls is not None
    assert built.message.tool_calls[0].function.arguments == call.function.arguments
    flat_choice: Any = {"type": "function", "name": "look"}
    response = gpt.responses.create(
        model=MODEL,
        input=messages,
        tools=flat(tools),
        tool_choice=flat_choice,
        max_output_tokens=99,
        temperature=0,
    )
    (made,) = (found for found in response.output if found.type == "function_call")
    assert made.arguments == call.function.arguments
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "A ship."}
    after = gpt.chat.completions.create(
        **more | {"messages": [*messages, choice.message.to_dict(), result]}, tool_choice="none"
    )
    assert after.choices[0].message.tool_calls is None


def test_some_of_the_tools(served: Served, gpt: openai.OpenAI) -> None:
    """Allowed tools: a call of one of those, in both APIs; the others stay in the prompt, whose
    prefix is read."""
    messages: Any = [user(filler(), "What is at berth 3?")]
    tools = [tool(name) for name in ("look", "hear", "smell")]
    written = Asker(served, "chat", False)(*messages, tools=tools).written
    some: Any = [{"type": "function", "function": {"name": name}} for name in ("look", "smell")]
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": some}}
    more: dict[str, Any] = {"model": MODEL, "tools": tools, "temperature": 0}
    told = gpt.chat.completions.create(
        **more, messages=messages, tool_choice=choice, max_completion_tokens=40
    )
    assert told.usage is not None
    assert told.usage.prompt_tokens_details is not None
    assert told.usage.prompt_tokens_details.cached_tokens == written > 64
    calls: Any = told.choices[0].message.tool_calls
    assert {call.function.name for call in calls} <= {"look", "smell"}
    flat_choice: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "hear"}],
    }
    turn: Any = [item(messages[0])]
    response = gpt.responses.create(
        **more | {"tools": flat(tools)}, input=turn, tool_choice=flat_choice, max_output_tokens=40
    )
    assert [found.name for found in response.output if found.type == "function_call"] == ["hear"]
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == written


def test_limits_and_stops(gpt: openai.OpenAI) -> None:
    """Why an answer ended, in each API's words."""
    messages: Any = [user("Count to ten.")]
    more: dict[str, Any] = {"model": MODEL, "messages": messages, "temperature": 0}
    cut = gpt.chat.completions.create(**more, max_completion_tokens=3).choices[0]
    assert cut.finish_reason == "length"
    text = (
        gpt.chat.completions.create(**more, max_completion_tokens=12).choices[0].message.content
        or ""
    )
    stop = text[4:6]
    stopped = gpt.chat.completions.create(**more, max_completion_tokens=12, stop=[stop]).choices[0]
    assert (stopped.finish_reason, stopped.message.content) == ("stop", text[: text.index(stop)])
    response = gpt.responses.create(model=MODEL, input=messages, max_output_tokens=3, temperature=0)
    assert (response.status, response.output_text) == ("incomplete", cut.message.content)


def test_errors(gpt: openai.OpenAI, served: Served) -> None:
    """The SDK's own classes, with code and param, and nothing worth retrying."""
    ask: Any = {"messages": [user("hi")], "model": MODEL}
    with pytest.raises(openai.NotFoundError) as unknown:
        gpt.chat.completions.create(**ask | {"model": "no-such-model"})
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as invalid:
        gpt.chat.completions.create(**ask | {"temperature": 3})
    assert (invalid.value.param, invalid.value.type) == ("temperature", "invalid_request_error")
    assert invalid.value.request_id
    long: Any = "word " * 9000
    with pytest.raises(
        openai.BadRequestError, match="maximum context length is 8192 tokens"
    ) as large:
        gpt.chat.completions.create(**ask | {"messages": [user(long)]})
    assert (large.value.code, large.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError, match="exceeds the context window") as larger:
        gpt.responses.create(model=MODEL, input=long)
    assert (larger.value.code, larger.value.param) == ("context_length_exceeded", "input")
    with served.client("wrong") as stranger, pytest.raises(openai.AuthenticationError) as refused:
        stranger.responses.create(model=MODEL, input="hi")
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError):
        gpt.post("/no/such/path", cast_to=object)


def test_models(gpt: openai.OpenAI) -> None:
    """The list, and one by an id it is served under."""
    assert MODEL in [model.id for model in gpt.models.list()]
    assert gpt.models.retrieve("gpt-5.6").object == "model"


# Cases of public reports --------------------------------------------------------------------------


def test_case_05_escaped_and_literal_text_are_one_prefix(chat: Asker, served: Served) -> None:
    """JSON escapes are not part of the text; another normalisation form and a trailing space are
    other texts."""
    words = filler() + " caf\u00e9"
    turn = user(words)
    written = chat(turn).written
    with served.client() as client:
        body = json.dumps(
            {"model": MODEL, "messages": [turn], "max_completion_tokens": 1}, ensure_ascii=True
        )
        headers = {"content-type": "application/json"}
        answer: Any = client.post(
            "/chat/completions", content=body.encode(), options={"headers": headers}, cast_to=object
        )
    assert "\\u00e9" in body
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == written
    assert chat(user(words.replace("\u00e9", "e\u0301"))).read == 0
    assert chat(user(words + " ")).read == 0


def test_case_11_a_burst_of_cold_requests_prefills_once(served: Served) -> None:
    """Six of the same prompt together: one writes, the others read."""
    turn, asker = user(filler(12)), Asker(served, "chat", False)
    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(lambda _: asker(turn), range(6)))
    assert sorted(each.written > 0 for each in told) == [False] * 5 + [True]
    assert len({max(each.read, each.written) for each in told}) == 1


def test_case_12_the_prompt_includes_what_was_cached(ask: Asker) -> None:
    """Read and written are parts of the prompt's count, which does not change with them."""
    turn = user(filler())
    cold, warm = ask(turn), ask(turn)
    assert cold.prompt == warm.prompt
    assert cold.written == warm.read > 0
    uncached = [int(each.headers["pcg-uncached-tokens"]) for each in (cold, warm)]
    assert uncached == [cold.prompt - cold.written, warm.prompt - warm.read]


def test_case_28_one_conversation_through_both_apis_is_one_prefix(served: Served) -> None:
    """Chat Completions writes, Responses reads, and both count the same tokens: no second BOS, no
    other rendering."""
    turns = [
        said("developer", "Be brief."),
        user(filler()),
        said("assistant", "Yes."),
        user("And?"),
    ]
    written = Asker(served, "chat", False)(*turns)
    read = Asker(served, "responses", False)(*turns)
    assert (read.read, read.prompt) == (written.written, written.prompt)


def test_case_30_an_answer_sent_back_reads_no_more_than_it_may(ask: Asker) -> None:
    """The next turn reads what the last one wrote, skips at least that, and never more than its own
    prompt."""
    limit = "max_completion_tokens" if ask.api == "chat" else "max_output_tokens"
    turn = user(filler(), "Say something about ~ and ~~.")
    first = ask(turn, temperature=0, **{limit: 8})
    after = ask(turn, said("assistant", first.text or "Yes."), user("And?"), temperature=0)
    assert after.read == first.written
    assert first.written <= int(after.headers["pcg-prefill-skipped-tokens"]) < after.prompt


def test_case_31_a_late_system_message_stays_in_place(ask: Asker) -> None:
    """What stood before it is read as before."""
    turns = [said("system", "Be brief."), user(filler())]
    written = ask(*turns).written
    late = ask(*turns, said("assistant", "Yes."), said("system", "A reminder."), user("And?"))
    assert late.read == written


def test_case_42_details_are_there_when_nothing_was_cached(ask: Asker) -> None:
    """Integers, zero when cold."""
    cold = ask(user("Hi."))
    assert (cold.read, cold.written) == (0, 0)


def test_case_48_a_cache_key_costs_no_work(chat: Asker) -> None:
    """Keys separate the bill, never the KV: another key's prompt is not computed again."""
    turn = user(filler())
    first = chat(turn, prompt_cache_key="session-1")
    other = chat(turn, prompt_cache_key="session-2")
    assert int(other.headers["pcg-prefill-skipped-tokens"]) >= first.written - 16
    assert [chat(turn, prompt_cache_key=f"session-{i}").read for i in (1, 2)] == [first.written] * 2


def test_legacy_completions(gpt: openai.OpenAI) -> None:
    """A raw prompt goes on, streamed alike, and the second time it is read from the cache."""
    words = filler()
    more: dict[str, Any] = {"model": MODEL, "prompt": words, "max_tokens": 5, "temperature": 0}
    cold, warm = (gpt.completions.create(**more) for _ in range(2))
    assert cold.choices[0].text == warm.choices[0].text
    assert cold.usage is not None
    assert warm.usage is not None
    assert warm.usage.prompt_tokens_details is not None
    assert warm.usage.prompt_tokens_details.cached_tokens == warm.usage.prompt_tokens - 1 > 64
    chunks = list(gpt.completions.create(**more, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == cold.choices[0].text
    with pytest.raises(openai.BadRequestError):
        gpt.completions.create(**more | {"prompt": [999_999_999]})
    both = gpt.completions.create(**more | {"prompt": [words, words + " And"]}, n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in both.choices[:2]} == {cold.choices[0].text}
    assert both.usage is not None
    assert both.usage.prompt_tokens == 2 * cold.usage.prompt_tokens + 1
    assert both.usage.completion_tokens <= 4 * more["max_tokens"]
