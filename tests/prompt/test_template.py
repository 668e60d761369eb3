"""Choosing a template, what it can do, and how it fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BadPrompt, ModelUnsupported
from engine.prompt.call_format import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, CallFormat
from engine.prompt.template import ChatTemplate, shipped_names
from engine.prompt.tokenizer import HfTokenizer
from tests.fakes.tokenizer import ByteTokenizer
from tests.prompt.kit import FOREIGN, TEMPLATES, source, template

HI = [{"role": "user", "content": "hi"}]
DAY = datetime(2026, 11, 30, tzinfo=UTC)
GOOD_CHATML = source("qwen3")
POOR_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


@pytest.mark.parametrize(
    ("special", "own", "chosen"),
    [
        (("<|im_start|>", "<|im_end|>"), POOR_CHATML, "chatml"),
        (("<|im_start|>", "<|im_end|>"), "{% broken", "chatml"),
        (("<|im_start|>", "<|im_end|>"), None, "chatml"),
        (("<|im_start|>", "<|im_end|>"), GOOD_CHATML, "model"),
        (("<|im_start|>",), POOR_CHATML, "model"),
        (("<|start_header_id|>",), source("llama31"), "llama3"),
        (("<start_of_turn>",), source("gemma"), "model"),
    ],
)
def test_auto(tmp_path: Path, special: tuple[str, ...], own: str | None, chosen: str) -> None:
    """A shipped template where the vocabulary fits one and the model's own is not better; else the
    model's own."""
    if own is not None:
        (tmp_path / "chat_template.jinja").write_text(own, encoding="utf-8")
    assert ChatTemplate.load("auto", tmp_path, ByteTokenizer(special)).name == chosen


@pytest.mark.parametrize(
    "field",
    ["own {{ 1 }}", [{"name": "rag", "template": "x"}, {"name": "default", "template": "own 1"}]],
)
def test_the_models_own_may_stand_in_its_configuration(tmp_path: Path, field: Any) -> None:
    """Older folders have it in tokenizer_config.json, alone or among others; a file of its own goes
    first."""
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": field}), encoding="utf-8"
    )
    assert ChatTemplate.load("model", tmp_path, ByteTokenizer(())).render(HI) == "own 1"
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert ChatTemplate.load("model", tmp_path, ByteTokenizer(())).render(HI) == "file"


@pytest.mark.parametrize("name", ["auto", "model", "nosuch"])
def test_no_template_is_unsupported(tmp_path: Path, name: str) -> None:
    """The error says which names there are."""
    with pytest.raises(ModelUnsupported, match=r"chatml, llama3, plain"):
        ChatTemplate.load(name, tmp_path, ByteTokenizer(()))


def test_a_template_that_does_not_compile_is_unsupported() -> None:
    """Said at start, not at the first request."""
    with pytest.raises(ModelUnsupported, match="does not compile"):
        ChatTemplate("{% for %}", name="bad", tokens={})


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_templates_can_do_everything(name: str) -> None:
    """Tools stand first, and every shape of conversation is rendered as it is."""
    features = template(name).features
    assert template(name).features.tools_first
    assert features.system
    assert features.late_system
    assert features.assistant_first
    assert features.tools
    assert features.tool_turns
    assert features.user_after_tool


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        (
            "gemma",
            {
                "late_system",
                "assistant_first",
                "tools",
                "tools_first",
                "tool_turns",
                "user_after_tool",
            },
        ),
        ("hoists", {"late_system", "tools", "tools_first", "tool_turns", "user_after_tool"}),
        ("llama31", {"tools_first", "tool_turns", "user_after_tool"}),
        ("mistral", {"system", "late_system", "assistant_first", "tools_first", "user_after_tool"}),
        ("mistral3", {"tools_first"}),
        ("phi", {"tools", "tools_first", "tool_turns", "user_after_tool"}),
        ("qwen3", {"tools_first"}),
        ("strips", {"tools", "tools_first", "tool_turns"}),
    ],
)
def test_what_foreign_templates_lack(name: str, lacks: set[str]) -> None:
    """Raising, leaving out and moving are all told apart from rendering."""
    features = template(name).features
    assert {field for field in features.__slots__ if not getattr(features, field)} == lacks


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("chatml", HERMES),
        ("plain", HERMES),
        ("llama3", LLAMA3),
        ("qwen3", HERMES),
        ("llama31", LLAMA3),
        ("mistral", MISTRAL),
        ("mistral3", MISTRAL_ARGS),
        ("strips", HERMES),
        ("gemma", HERMES),
    ],
)
def test_how_a_template_writes_calls(name: str, calls: CallFormat) -> None:
    """Found in what it renders, even where it renders only one call at a time; our fallback's where
    it writes none we know."""
    assert template(name).features.calls is calls


def test_calls_in_a_form_nobody_can_read_are_no_ability() -> None:
    """A template that writes calls as XML gets tools and calls in the fallback's form, so that
    answers can be read."""
    text = (
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}[{{ "
        "m.role }}]{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call><function={{ c.function.name }}>{{ "
        "c.function.arguments.argument }}"
        "</function></tool_call>{% endfor %}{% endfor %}"
    )
    features = ChatTemplate(text, name="x", tokens={}).features
    assert not features.tools
    assert not features.tool_turns
    assert features.calls is HERMES


def test_the_default_model_gets_chatml(default_model: Path, tokenizer: HfTokenizer) -> None:
    """Its own template ignores tools."""
    assert ChatTemplate.load("auto", default_model, tokenizer).name == "chatml"
    assert not ChatTemplate.load("model", default_model, tokenizer).features.tools


def test_the_clock_is_frozen() -> None:
    """A template that prints the date prints the same one for ever."""
    made = ChatTemplate("{{ strftime_now('%d %b %Y %H:%M') }}", name="x", tokens={})
    assert made.render(HI) == "26 Jul 2024 00:00"
    assert made.on(DAY) is made


def test_a_clock_that_tells_the_day_and_one_that_is_off() -> None:
    """The day it is put on; and without a clock the template finds none, as it does where
    transformers has none."""
    text = (
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}no clock{% "
        "endif %}"
    )
    daily = ChatTemplate(text, name="x", tokens={}, clock="utc_day")
    assert daily.uses_date
    assert daily.on(DAY).render(HI) == "30 Nov 2026"
    assert daily.on(DAY).fingerprint == daily.fingerprint
    off = ChatTemplate(text, name="x", tokens={}, clock="off")
    assert off.render(HI) == "no clock"
    assert off.fingerprint != daily.fingerprint
    assert not ChatTemplate("{{ messages }}", name="x", tokens={}, clock="utc_day").uses_date


def test_fingerprints_follow_what_is_rendered() -> None:
    """Source, named tokens: equal ones are equal, others differ."""
    made = [
        ChatTemplate(text, name="n", tokens=tokens)
        for text, tokens in [("a", {}), ("b", {}), ("a", {"bos_token": "s"})]
    ]
    assert len({one.fingerprint for one in made}) == 3
    assert ChatTemplate("a", name="other", tokens={}).fingerprint == made[0].fingerprint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ raise_exception('No ' + messages[0].content) }}", "TemplateError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].nothing.at_all }}", "UndefinedError"),
        ("{{ messages[9]['content'].x }}", "UndefinedError"),
        ("{{ messages[0].__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ namespace(_x=1) }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content.index('z') }}", "ValueError"),
    ],
)
def test_failures_are_the_prompts_and_quote_nothing_of_it(text: str, words: str) -> None:
    """The template's own words are passed on only if they are literally its own."""
    made = ChatTemplate(
        f"{{% if messages[0].content == 'secret' %}}{text}{{% endif %}}", name="x", tokens={}
    )
    with pytest.raises(BadPrompt) as caught:
        made.render([{"role": "user", "content": "secret"}])
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_options_reach_the_template_but_not_its_arguments() -> None:
    """An option cannot replace the messages."""
    made = ChatTemplate(
        "{{ enable_thinking }}{{ messages[0].content }}{{ bos_token }}",
        name="x",
        tokens={"bos_token": "<s>"},
    )
    assert made.render(HI, options={"enable_thinking": False, "messages": []}) == "Falsehi<s>"


CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": " Be <brief> & 'kind'.\n"},
    {"role": "user", "content": "  héllo\n\n"},
    {"role": "assistant", "content": "<think>hm</think>\n\nhi"},
    {"role": "user", "content": "안녕"},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "ä <x>",
            "parameters": {"type": "object", "properties": {"b": {}, "a": {}}},
        },
    }
]
CALLS: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "type": "function",
                "id": "call00001",
                "function": {"name": "f", "arguments": {"x": "é", "y": [1, 2.0]}},
            }
        ],
    },
    {"role": "tool", "content": "{'a': 1}", "name": "f", "tool_call_id": "call00001"},
    {"role": "assistant", "content": "done"},
]


@pytest.mark.engine
@pytest.mark.parametrize("with_tools", [False, True], ids=["chat", "tools"])
@pytest.mark.parametrize("generate", [False, True], ids=["whole", "prompt"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(
    default_model: Path, name: str, generate: bool, with_tools: bool
) -> None:
    """Byte for byte what `apply_chat_template` makes of it, or both refuse."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(default_model)
    tokens = {"bos_token": theirs.bos_token, "eos_token": theirs.eos_token}
    text = source(name) if name in FOREIGN else template(name).source
    ours = ChatTemplate(text, name=name, tokens=tokens)
    messages, tools = ([*CHAT, *CALLS], TOOLS) if with_tools else (CHAT, None)
    options = {"date_string": "1 Jan 2025"}
    try:
        expected = theirs.apply_chat_template(
            messages,
            tools=tools,
            chat_template=text,
            tokenize=False,
            add_generation_prompt=generate,
            **options,
        )
    except Exception:
        with pytest.raises(BadPrompt):
            ours.render(messages, tools, add_generation_prompt=generate, options=options)
        return
    assert ours.render(messages, tools, add_generation_prompt=generate, options=options) == expected
