"""`/v1/chat/completions` and `/v1/completions`: answers, streams, choices, log-probabilities,
tools, forms, caching."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tools.corpus.cases.bodies import (
    TIME,
    WEATHER,
    assistant,
    chat,
    complete,
    function,
    mark,
    streamed,
    text,
    user,
)
from tools.corpus.steps import Step

USAGE: Final = {"stream_options": {"include_usage": True}}
EXPLICIT: Final = {"mode": "explicit"}


def steps() -> Iterator[Step]:
    yield from _answers()
    yield from _tools()
    yield from _forms()
    yield from _caching()
    yield from _completions()


def _answers() -> Iterator[Step]:
    yield from streamed(chat("chat"), **USAGE)
    yield chat("chat-stream-without-usage", stream=True)
    yield from streamed(
        chat("chat-own-words", model="thinker", max_tokens=50, temperature=1), **USAGE
    )
    yield from streamed(chat("chat-stopped", model="thinker", max_tokens=50, stop="it is"))
    yield from streamed(chat("chat-n", n=3, temperature=0.8, seed=7), **USAGE)
    yield from streamed(chat("chat-logprobs", logprobs=True, top_logprobs=3))
    yield chat("chat-logprobs-alone", logprobs=True)
    yield chat(
        "chat-seeded",
        temperature=1.2,
        top_p=0.9,
        seed=11,
        presence_penalty=0.5,
        frequency_penalty=0.5,
    )
    yield chat(
        "chat-seeded-vllm",
        temperature=1,
        top_k=5,
        min_p=0.05,
        repetition_penalty=1.2,
        seed=12,
        ignore_eos=True,
    )
    yield chat("chat-biased", logit_bias={"42": 100})
    yield chat(
        "chat-developer",
        messages=[
            {"role": "developer", "content": "Be brief."},
            user("Hi"),
            assistant("Yes?"),
            user("Go"),
        ],
    )
    yield chat(
        "chat-late-system",
        messages=[user("Hi"), {"role": "system", "content": "Be brief."}, user("Go")],
    )
    yield chat(
        "chat-parts",
        messages=[user([{"type": "text", "text": "Hi"}, {"type": "text", "text": "Zoë 👋"}])],
    )
    yield chat(
        "chat-refusal", messages=[user("Hi"), {"role": "assistant", "refusal": "No."}, user("Why?")]
    )
    yield chat(
        "chat-reasoned",
        model="thinker",
        messages=[user("Hi"), assistant("Yes") | {"reasoning_content": "Hm"}, user("Why?")],
    )
    yield from streamed(
        chat("chat-effort", model="thinker", max_completion_tokens=50, reasoning_effort="high"),
        **USAGE,
    )
    yield chat("chat-no-effort", model="thinker", max_completion_tokens=50, reasoning_effort="none")
    yield chat(
        "chat-stored",
        store=True,
        metadata={"a": "b"},
        user="u",
        safety_identifier="s",
        service_tier="flex",
    )
    yield chat("chat-verbosity", verbosity="low")
    yield chat(
        "chat-template-options",
        model="thinker",
        max_tokens=50,
        chat_template_kwargs={"enable_thinking": True},
    )
    yield chat("chat-context", messages=[user(text("too long", 9000))])
    for model in (
        "gpt-5.6",
        "gpt-4o",
        "o3-mini",
        "gemini-2.5-pro",
        "chatgpt-4o-latest",
        "deepseek-chat",
        "kimi-k3",
        "openrouter/x",
    ):
        yield chat(f"chat-as-{model}", model=model, messages=[user(text("dialect", 40))])


def _tools() -> Iterator[Step]:
    tools = [function(), function("get_time", TIME)]
    allowed = {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "get_time"}}],
    }
    for name, choice in {
        "required": "required",
        "auto": "auto",
        "none": "none",
        "named": {"type": "function", "function": {"name": "get_time"}},
        "allowed": {"type": "allowed_tools", "allowed_tools": allowed},
    }.items():
        yield from streamed(
            chat(f"chat-tool-{name}", tools=tools, tool_choice=choice, max_tokens=60), **USAGE
        )
    yield chat(
        "chat-tool-single",
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
    )
    yield chat(
        "chat-tool-n",
        tools=tools,
        tool_choice="required",
        n=2,
        max_tokens=40,
        parallel_tool_calls=False,
    )
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
    }
    told = [user("Hi"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    yield chat(
        "chat-tool-result",
        tools=tools,
        messages=[*told, {"role": "tool", "tool_call_id": "call_1", "content": "12"}],
    )
    broken = call | {"function": {"name": "get_weather", "arguments": "{city"}}
    yield chat("chat-tool-broken", tools=tools, messages=[
        user("Hi"), {"role": "assistant", "tool_calls": [broken]},
        {"role": "tool", "tool_call_id": "call_1", "content": [
            {"type": "text", "text": "12"}]}])  # fmt: skip


def _forms() -> Iterator[Step]:
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "w", "schema": WEATHER, "strict": True},
    }
    yield from streamed(chat("chat-form", response_format=schema, max_tokens=40))
    yield chat("chat-form-object", response_format={"type": "json_object"}, max_tokens=12)
    yield chat("chat-form-text", response_format={"type": "text"})
    yield chat("chat-form-logprobs", response_format=schema, max_tokens=40, logprobs=True)
    yield chat("chat-regex", structured_outputs={"regex": "[0-9]{3}-[a-f]{2}"}, max_tokens=40)
    yield chat("chat-choice", guided_choice=["yes", "no"], max_tokens=40)
    yield chat("chat-grammar", structured_outputs={"grammar": 'start: "a" "b"+ "c"'}, max_tokens=12)
    yield chat("chat-json", guided_json=TIME, max_tokens=40)
    yield from streamed(chat(
        "chat-written-call", tools=[function("get_time", TIME)], max_tokens=80, guided_regex=(
        r'Well\. <tool_call>\n\{"name": "get_time", "arguments": \{"zone": '
        r'"UTC"\}\}\n</tool_call>')))  # fmt: skip


def _caching() -> Iterator[Step]:
    for model, num_words in (
        ("small", 150),
        ("gpt-5.6", 1100),
        ("gpt-4o", 1100),
        ("qwen-max", 300),
    ):
        said = [{"role": "system", "content": text(f"talk with {model}", num_words)}, user("One?")]
        yield chat(f"chat-turn-{model}-0", model=model, messages=said)
        said = [*said, assistant("Yes."), user("Two?")]
        yield chat(f"chat-turn-{model}-1", model=model, messages=said, stream=True, **USAGE)
        yield chat(
            f"chat-turn-{model}-2", model=model, messages=[*said, assistant("No."), user("Three?")]
        )
    marked = [
        user(
            [
                {"type": "text", "text": text("marked", 150), "prompt_cache_breakpoint": EXPLICIT},
                {"type": "text", "text": "?"},
            ]
        )
    ]
    options: dict[str, Any] = {"prompt_cache_options": {"mode": "explicit", "ttl": "1h"}}
    yield chat("chat-explicit", messages=marked, **options)
    yield chat("chat-explicit-again", messages=marked, **options)
    yield chat("chat-explicit-after-40m", messages=marked, **options, step={"after_s": 2400})
    yield chat("chat-explicit-other-key", messages=marked, **options, prompt_cache_key="other")
    twelve = [
        user(
            [
                {
                    "type": "text",
                    "text": text("twelve", 150),
                    "prompt_cache_breakpoint": {**EXPLICIT, "ttl": "12h"},
                }
            ]
        )
    ]
    yield chat("chat-twelve-hours", messages=twelve)
    yield chat("chat-twelve-hours-later", messages=twelve, step={"after_s": 39_000})
    keyed = [user(text("keyed", 150))]
    yield chat("chat-keyed", messages=keyed, prompt_cache_key="a", prompt_cache_retention="24h")
    yield chat(
        "chat-keyed-again", messages=keyed, prompt_cache_key="a", prompt_cache_retention="24h"
    )
    foreign = [user([{"type": "text", "text": text("foreign", 150), "cache_control": mark("1h")}])]
    yield chat("chat-foreign-marker", messages=foreign)
    yield chat("chat-foreign-marker-again", messages=foreign, stream=True, **USAGE)
    yield chat(
        "chat-automatic", messages=[user(text("top", 150))], cache_control={"type": "ephemeral"}
    )
    for i, control in enumerate(("no-cache", "no-store", "max-age=5", "only-if-cached")):
        yield chat(
            f"chat-directive-{i}", messages=keyed, step={"headers": {"cache-control": control}}
        )


def _completions() -> Iterator[Step]:
    yield from streamed(complete("completion"), **USAGE)
    yield from streamed(
        complete("completion-several", prompt=["One", "Two"], n=2, seed=3, temperature=0.7)
    )
    yield from streamed(complete("completion-logprobs", logprobs=2))
    yield complete("completion-logprobs-0", logprobs=0)
    yield from streamed(complete("completion-echo", echo=True))
    yield complete("completion-tokens", prompt=[10, 20, 30, 40])
    yield complete("completion-token-lists", prompt=[[10, 20], [30, 40]])
    yield complete("completion-default", max_tokens=16, stop=["e"])
    yield complete("completion-empty", prompt="")
    yield complete("completion-long", prompt=text("completed", 200))
    yield complete("completion-long-again", prompt=text("completed", 200) + " and on")
    yield complete("completion-stopped", model="thinker", prompt="x\n", stop=["see"], max_tokens=20)
