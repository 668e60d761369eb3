"""Where positions end in the tokens, for templates of every style and prompts of every shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BadPrompt
from engine.prompt.position_marks import PRIVATE
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import (
    CacheMark,
    Message,
    Part,
    Position,
    Prompt,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from tests.prompt.kit import AGENT, BYTES, RENDERERS, TEMPLATES, call, message, result, say, tool

SHIPPED = ("chatml", "llama3", "plain")


def ends(name: str, prompt: Prompt) -> dict[str, str]:
    """The text up to each position."""
    rendered = RENDERERS[name].render(prompt)
    return {
        str(position): BYTES.decode(rendered.token_ids[:offset])
        for position, offset in rendered.offsets.items()
    }


# What is known of one prompt ----------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_positions_end_where_their_content_does(name: str) -> None:
    """Tools at their brace, texts and results at their last character, calls behind the syntax that
    closes them."""
    behind = {"chatml": "}\n</tool_call>", "llama3": "}", "plain": "}\n</tool_call>"}[name]
    found = ends(name, AGENT)
    endings = {
        "tools/0": '"required": ["city"]}}}',
        "tools/1": '"required": ["zone"]}}}',
        "system/0": "You are terse.",
        "system/1": "Answer in German.",
        "messages/0/0": "How warm is it in Köln",
        "messages/0/1": "and in Bonn?",
        "messages/1/0": "I look.",
        "messages/1/1": '{"city": "Köln"}' + behind,
        "messages/1/2": '{"city": "Bonn", "days": 3}' + behind,
        "messages/2/0": "21 degrees",
        "messages/2/1": "22 degrees",
        "messages/2/2": "Now answer.",
        "messages/3/0": "Warm.",
        "messages/4/0": "Thanks.",
    }
    assert list(found) == list(endings)
    assert {key: text[-len(endings[key]) :] for key, text in found.items()} == endings


@pytest.mark.parametrize(
    ("name", "position", "ending"),
    [
        ("qwen3", "tools/1", '"required": ["zone"]}}}'),
        ("qwen3", "system/1", '"required": ["zone"]}}}'),
        ("qwen3", "messages/2/1", "22 degrees"),
        ("gemma", "tools/1", '"required": ["zone"]}}}'),
        ("gemma", "system/1", "Answer in German."),
        ("gemma", "messages/2/2", "Now answer."),
        ("mistral", "messages/4/0", "Thanks."),
        ("phi", "messages/3/0", "Warm."),
        ("qwen3", "messages/1/2", '{"city": "Bonn", "days": 3}}\n</tool_call>'),
        ("strips", "messages/1/2", '{"city": "Bonn", "days": 3}}\n</tool_call>'),
        (
            "hoists",
            "messages/1/2",
            '{"name": "weather", "arguments": {"city": "Bonn", "days": 3}}\n</tool_call>',
        ),
        ("llama31", "messages/0/1", "and in Bonn?"),
        ("shouts", "messages/4/0", "Thanks.\n"),
    ],
)
def test_positions_in_foreign_templates(name: str, position: str, ending: str) -> None:
    """Found by marks, else by prefixes; in wire order even where the template has another."""
    assert ends(name, AGENT)[position].endswith(ending)


@pytest.mark.parametrize(
    ("name", "text", "ending"),
    [
        ("chatml", "hi \n", "hi \n"),
        ("phi", "\n hi\n", "hi\n"),
        ("gemma", "  hi \n", "hi"),
        ("strips", " hi ", "hi"),
    ],
)
def test_trimmed_content_ends_where_it_was_trimmed(name: str, text: str, ending: str) -> None:
    """A position is exact whether the template keeps outer whitespace or not, whatever other parts
    look like."""
    prompt = Prompt(
        system=(TextPart("sys "),),
        messages=(say("user", text), say("assistant", "a"), say("user", " b ")),
    )
    assert ends(name, prompt)["messages/0/0"].endswith(ending)


def test_offsets_count_bytes() -> None:
    """Worked numbers: control tokens count one, bytes one each."""
    rendered = RENDERERS["chatml"].render(
        Prompt(system=(TextPart("ab"),), messages=(say("user", "é", "c"),))
    )
    assert rendered.offsets == {Position("system", 0): 10, message(0, 0): 20, message(0, 1): 22}
    assert rendered.preamble == 8
    assert len(rendered.token_ids) == 22 + 1 + 1 + 1 + len("assistant\n")


def test_a_space_before_content_belongs_to_it() -> None:
    """Words are in vocabularies with the space before them, and models write them so."""
    template = ChatTemplate("USER: {{ messages[0].content }} ASSISTANT:", name="x", tokens={})
    rendered = Renderer(BYTES, template).render(Prompt(messages=(say("user", "hi"),)))
    assert rendered.preamble == len("USER:")
    assert rendered.offsets[message(0)] == len("USER: hi")


def test_the_tokens_of_the_day_are_known() -> None:
    """Where a template tells the day, from its first character on: nothing before it changes at
    midnight, and nothing else."""
    source = "It is {{ strftime_now('%d %b %Y') }}. {{ messages[0].content }}"
    prompt = Prompt(messages=(say("user", "hi"),))
    renderer = Renderer(BYTES, ChatTemplate(source, name="x", tokens={}, clock="utc_day"))
    today, tomorrow = renderer.render(prompt, 86399.0), renderer.render(prompt, 86400.0)
    assert bytes(today.token_ids).decode() == "It is 01 Jan 1970. hi"
    assert bytes(tomorrow.token_ids).decode() == "It is 02 Jan 1970. hi"
    assert renderer.render(prompt, 0.0) == today
    differs = next(
        i
        for i, (a, b) in enumerate(zip(today.token_ids, tomorrow.token_ids, strict=True))
        if a != b
    )
    assert differs in today.clock
    assert today.clock == range(len("It is ") - 1, len("It is 01 Jan 1970."))
    frozen = Renderer(BYTES, ChatTemplate(source, name="x", tokens={})).render(prompt, 86400.0)
    assert frozen.clock == range(0)


def test_thinking_ends_with_what_precedes_it() -> None:
    """The shipped templates leave earlier reasoning out unless asked."""
    prompt = Prompt(
        messages=(
            say("user", "a"),
            Message("assistant", (ThinkingPart("hm"), TextPart("b"))),
            say("user", "c"),
        )
    )
    rendered = RENDERERS["chatml"].render(prompt)
    assert rendered.offsets[message(1, 0)] == rendered.offsets[message(0, 0)]
    kept = msgspec.structs.replace(prompt, template_options={"preserve_thinking": True})
    assert ends("chatml", kept)["messages/1/0"].endswith("<think>\nhm")


def test_raw_arguments_are_rendered_as_they_are() -> None:
    """What was no JSON object is the model's own text."""
    prompt = Prompt(
        messages=(say("user", "a"), Message("assistant", (ToolCallPart("1", "f", '{"x": '),)))
    )
    assert '"arguments": {"x": }' in RENDERERS["chatml"].text(prompt)


def test_bos_is_the_templates_alone(tokenizer: Any) -> None:
    """Neither the vocabulary nor a piece adds a second one."""
    rendered = RENDERERS["llama3"].render(AGENT)
    bos = BYTES.special_tokens["<s>"]
    assert rendered.token_ids[0] == bos
    assert rendered.token_ids.count(bos) == 1


# The conversation goes on, and the client's spelling ----------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_tools_stay_when_the_system_text_changes(name: str) -> None:
    """The promise of `tools_first`."""
    renderer = RENDERERS[name]
    changed = msgspec.structs.replace(AGENT, system=(TextPart("Be kind."),))
    one, other = renderer.render(AGENT), renderer.render(changed)
    end = one.offsets[Position("tools", 1)]
    assert other.offsets[Position("tools", 1)] == end
    assert one.token_ids[:end] == other.token_ids[:end]


def test_the_answers_tokens_follow_the_prompt(renderer: Renderer, tokenizer: Any) -> None:
    """An answer that is echoed is cut where generation began, so its tokens are those of the answer
    alone."""
    short = Prompt(messages=(say("user", "Hi"),))
    answer = "\n\nHello there! 안녕"
    longer = Prompt(messages=(*short.messages, say("assistant", answer), say("user", "more")))
    prompt = renderer.render(short).token_ids
    echoed = renderer.render(longer)
    assert echoed.token_ids[: echoed.offsets[message(1)]] == (*prompt, *tokenizer.encode(answer))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('"caf\\u00e9"', '"café"', True),
        ('"caf\\u00e9"', '"cafe\\u0301"', False),
        ('"caf\\u00e9"', '"café "', False),
        ('"a\\r\\nb"', '"a\\nb"', False),
        ('"\\ud83d\\ude00"', '"😀"', True),
    ],
)
def test_escapes_are_spelling_and_normal_forms_are_not(
    renderer: Renderer, one: str, other: str, same: bool
) -> None:
    """Texts that are equal after JSON decoding are equal; nothing else is folded, trimmed or
    normalised."""
    made = []
    for text in (json.loads(one), json.loads(other)):
        parts = (Message("user", (TextPart(text),)), Message("assistant", (call(1, city=text),)))
        made.append(renderer.render(Prompt(system=(TextPart(text),), messages=parts)).token_ids)
    assert (made[0] == made[1]) is same


def test_key_order_is_the_clients(renderer: Renderer) -> None:
    """Other order, other prompt; the same order, the same bytes."""

    def with_keys(*names: str) -> tuple[int, ...]:
        made = tool("f", **{name: {"type": "string"} for name in names})
        return renderer.render(msgspec.structs.replace(AGENT, tools=(made,))).token_ids

    assert with_keys("city", "unit") == with_keys("city", "unit")
    assert with_keys("city", "unit") != with_keys("unit", "city")


@pytest.mark.parametrize("name", TEMPLATES)
def test_private_use_characters_in_content(name: str) -> None:
    """Icons of patched fonts and the characters we would have marked with pass through, and
    positions are still found."""
    text = "\ue000 \uf8ff\U000f0000\U000f0001\U000f0002 \U00100000"
    prompt = Prompt(
        system=(TextPart("s"),),
        messages=(say("user", text, "b"), say("assistant", text), say("user", "c")),
    )
    rendered = RENDERERS[name].render(prompt)
    assert RENDERERS[name].text(prompt).count(text) == 2
    assert BYTES.decode(rendered.token_ids) == RENDERERS[name].text(prompt)
    if name != "shouts":
        assert BYTES.decode(rendered.token_ids[: rendered.offsets[message(0, 0)]]).endswith(text)


def test_only_new_pieces_are_encoded(default_model: Path) -> None:
    """The same prompt again encodes nothing; a longer one encodes what was added, however long the
    rest is."""
    tokenizer = HfTokenizer.from_folder(default_model)
    renderer = Renderer(tokenizer, ChatTemplate.load("auto", default_model, tokenizer))
    long = msgspec.structs.replace(AGENT, system=(TextPart("All work and no play. " * 1000),))
    renderer.render(long)
    before = tokenizer.memo_nbytes
    renderer.render(marked(long, CacheMark(300.0)))
    assert tokenizer.memo_nbytes == before
    renderer.render(
        msgspec.structs.replace(
            long, messages=(*long.messages, say("assistant", "Sure."), say("user", "Go on."))
        )
    )
    assert before < tokenizer.memo_nbytes < before + 2_000


# Going on with an answer --------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["The answer is", "The answer is\n\n", "a"])
def test_continue_final(name: str, text: str) -> None:
    """The prompt ends in the last message's text, with nothing of the template behind it."""
    prompt = Prompt(messages=(say("user", "q"), say("assistant", text)), continue_final=True)
    rendered = RENDERERS[name].render(prompt)
    assert BYTES.decode(rendered.token_ids).endswith((text, text.strip()))
    assert max(rendered.offsets.values()) <= len(rendered.token_ids)


def test_continuing_in_parts_ends_with_the_last(renderer: Renderer) -> None:
    """The last position is the end of the prompt."""
    prompt = Prompt(messages=(say("user", "q"), say("assistant", "a", "b")), continue_final=True)
    rendered = renderer.render(prompt)
    assert rendered.offsets[message(1, 1)] == len(rendered.token_ids)


@pytest.mark.parametrize("messages", [(), (say("user", "q"),)])
def test_only_an_answer_can_be_continued(messages: tuple[Message, ...]) -> None:
    """There is nothing to go on with."""
    with pytest.raises(BadPrompt, match="assistant"):
        RENDERERS["chatml"].render(Prompt(messages=messages, continue_final=True))


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_assistant_may_open_behind_system_text(name: str) -> None:
    """A greeting in front of the first question is in every model's prompt, where it was said, with
    tools and without."""
    said = ("Welcome.", "Hello.", "Yes?", "Go.")
    greeted = tuple(say("user" if i % 2 else "assistant", text) for i, text in enumerate(said))
    for tools in ((), (tool("clock"),)):
        text = RENDERERS[name].text(
            Prompt(messages=greeted, system=(TextPart("Be kind."),), tools=tools)
        )
        places = [text.index(words) for words in ("Be kind.", *said)]
        assert places == sorted(places)


# What is refused ----------------------------------------------------------------------------------


def test_a_template_that_refuses_is_a_bad_prompt() -> None:
    """With the template's words."""
    template = ChatTemplate(
        "{% if messages | length > 4 %}{{ raise_exception('Too many turns') }}{% endif %}{{ "
        "messages[0].content }}",
        name="x",
        tokens={},
    )
    with pytest.raises(BadPrompt, match="Too many turns"):
        Renderer(BYTES, template).render(AGENT)


@pytest.mark.parametrize("name", SHIPPED)
def test_half_a_surrogate_pair_is_a_bad_prompt(name: str) -> None:
    """It is no character, and no vocabulary has it."""
    with pytest.raises(BadPrompt, match="surrogate"):
        RENDERERS[name].render(Prompt(messages=(say("user", "a\ud800"),)))


# What holds for every prompt ----------------------------------------------------------------------

TEXT = st.text(
    st.sampled_from(["a", "b", " ", "\n", "é", "한", "😀", "\ue000", "\U000f0000", '"', "\\", "<"]),
    max_size=6,
) | (
    st.sampled_from(
        [
            "<|im_end|>",
            "<|im_end|>x",
            "a<s>",
            "</think>",
            "<think>b</think>\n\nc",
            "[/INST] [INST]",
            "<tool_response>",
        ]
    )
)
VALUES = st.recursive(
    TEXT | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=2)
CACHE = st.none() | st.builds(CacheMark, st.just(300.0))
IDS = st.sampled_from(["1", "2"])
TEXTS = st.builds(TextPart, TEXT, cache=CACHE)
RESULTS = st.builds(ToolResultPart, IDS, TEXT, st.booleans(), cache=CACHE)
CALLS = st.builds(ToolCallPart, IDS, TEXT, OBJECTS | TEXT, cache=CACHE)
PARTS: dict[Any, st.SearchStrategy[Part]] = {
    "user": TEXTS | RESULTS,
    "tool": RESULTS,
    "assistant": TEXTS | CALLS | st.builds(ThinkingPart, TEXT),
    "system": TEXTS,
}
MESSAGES = st.sampled_from(sorted(PARTS)).flatmap(
    lambda role: st.builds(Message, st.just(role), st.lists(PARTS[role], max_size=3).map(tuple))
)
PROMPTS = st.builds(
    Prompt,
    st.lists(MESSAGES, min_size=1, max_size=6).map(tuple),
    st.lists(TEXTS, max_size=2).map(tuple),
    st.lists(st.builds(Tool, TEXT, TEXT, OBJECTS, cache=CACHE), max_size=2).map(tuple),
)


def marked(prompt: Prompt, cache: CacheMark | None) -> Prompt:
    """The same prompt with `cache` on every part that can have a mark."""

    def mark(part: Any) -> Any:
        return (
            part if isinstance(part, ThinkingPart) else msgspec.structs.replace(part, cache=cache)
        )

    return msgspec.structs.replace(
        prompt,
        tools=tuple(map(mark, prompt.tools)),
        system=tuple(map(mark, prompt.system)),
        messages=tuple(
            msgspec.structs.replace(one, parts=tuple(map(mark, one.parts)))
            for one in prompt.messages
        ),
    )


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60)
@given(prompt=PROMPTS)
def test_every_prompt(name: str, prompt: Prompt) -> None:
    """Ids are the text's; offsets are in wire order and in range; marks change nothing; nothing of
    ours is left in the text."""
    renderer = RENDERERS[name]
    try:
        rendered = renderer.render(prompt)
    except BadPrompt:
        assert name not in SHIPPED
        return
    text = renderer.text(prompt)
    assert BYTES.decode(rendered.token_ids) == text
    assert set(PRIVATE.findall(text)) <= {"\ue000", "\U000f0000"}
    assert list(rendered.offsets) == [position for position, _ in prompt.positions()]
    assert list(rendered.offsets.values()) == sorted(rendered.offsets.values())
    assert max(rendered.offsets.values(), default=0) <= len(rendered.token_ids)
    assert rendered.preamble <= len(rendered.token_ids)
    for cache in (None, CacheMark(3600.0)):
        assert renderer.render(marked(prompt, cache)) == rendered


@pytest.mark.parametrize("name", SHIPPED)
@settings(max_examples=60)
@given(prompt=PROMPTS, more=st.lists(MESSAGES, min_size=1, max_size=3))
def test_every_conversation_goes_on(name: str, prompt: Prompt, more: list[Message]) -> None:
    """Messages that are appended change neither offset nor token of any position that was there
    before."""
    renderer = RENDERERS[name]
    before = renderer.render(prompt)
    after = renderer.render(msgspec.structs.replace(prompt, messages=(*prompt.messages, *more)))
    assert {position: after.offsets[position] for position in before.offsets} == before.offsets
    end = max(before.offsets.values(), default=0)
    assert after.token_ids[:end] == before.token_ids[:end]


@settings(max_examples=40)
@given(prompt=PROMPTS)
def test_every_prompt_of_the_default_model(
    renderer: Renderer, tokenizer: Any, prompt: Prompt
) -> None:
    """With a real vocabulary the ids still are the text's, and each offset is a cut in it."""
    plain = msgspec.convert(
        json.loads(json.dumps(msgspec.to_builtins(prompt)).replace("\\udb80\\udc00", "x")), Prompt
    )
    rendered = renderer.render(plain)
    text = renderer.text(plain)
    assert tokenizer.decode(rendered.token_ids) == text
    for offset in rendered.offsets.values():
        head = tokenizer.decode(rendered.token_ids[:offset])
        assert text.startswith(head)


def test_results_of_many_calls_are_all_found() -> None:
    """Positions are found in conversations of hundreds of messages too."""
    turns = [
        (Message("assistant", (call(i, n=i),)), Message("user", (result(i, f"r{i}"),)))
        for i in range(300)
    ]
    prompt = Prompt(messages=(say("user", "go"), *(one for turn in turns for one in turn)))
    found = ends("chatml", prompt)
    assert all(found[f"messages/{2 * i + 2}/0"].endswith(f"r{i}") for i in range(300))
