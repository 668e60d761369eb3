"""Prompt -> RenderedPrompt: the model's token ids and where every position ends in them.

Knows no caching rules.

The text is what the template makes of the messages, rendered without marks. A second render, with
marks, only finds where content went. The text is cut wherever content begins or ends, whether a
position is marked by the client or not, and the cuts' pieces are encoded one by one: the ids depend
on the conversation alone, and up to a position only on what precedes it, so a conversation that
goes on keeps its ids.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from engine.errors import BadPrompt
from engine.prompt.ceiling import Ceiling
from engine.prompt.conversation import TAGS, build_conversation
from engine.prompt.guard import Guard, Guarded
from engine.prompt.output_syntax import OutputSyntax
from engine.prompt.position_marks import (
    Located,
    Mismatch,
    NoMarks,
    Owner,
    PrivateMarks,
    locate,
    owner,
)
from engine.prompt.reasoning import reasoning_kind
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.template import ChatTemplate
from engine.prompt.tokenizer import Tokenizer
from engine.prompt.types import Level, Position, Prompt, TextPart, ToolCallPart

_MAX_MARKED_RENDERS: Final = 4

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OTHER_DAYS: Final = (datetime(1111, 1, 1, tzinfo=UTC), datetime(2222, 12, 22, tzinfo=UTC))
"""Days to compare with: a template that writes the date writes one of these differently from its
first character on."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A text, the places where it is cut, the ends of the positions found, and where the first
    content begins.

    From `clock` on another day would be another text; None where it would not.
    """

    text: str
    cuts: tuple[int, ...]
    ends: Mapping[Position, int]
    preamble: int
    clock: int | None


class Renderer:
    """Renders prompts with one tokenizer and one template; belongs to one thread (it fills the
    tokenizer's memo).

    What is promised of `render`: moving, adding or removing cache marks changes nothing; content
    never becomes a control token (see `Guard`); the same conversation in Anthropic's and OpenAI's
    shape gives the same ids.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, max_tokens: int | None = None
    ) -> None:
        """With `max_tokens` a text that must be more tokens, because no token is so long, is
        refused before it is tokenized."""
        longest = tokenizer.longest_token
        self._ceiling = (
            None if max_tokens is None or longest is None else Ceiling(max_tokens, longest)
        )
        self._tokenizer = tokenizer
        self._template = template
        self._guard = Guard(
            tokenizer.special_tokens, tokenizer.added_tokens, f"{template.source} {TAGS}"
        )
        own = template.source if template.name == "model" else ""
        self._reasoning = reasoning_kind(tokenizer.added_tokens, own)

    def render(self, prompt: Prompt, now_s: float = 0.0) -> RenderedPrompt:
        """Token ids and offsets of `prompt`. Raises `BadPrompt` when the template refuses it or its
        text is no Unicode, and `ContextExceeded` when it is too long to be tokenized.

        A template that writes the date writes that of `now_s`, epoch seconds, in UTC.
        """
        if self._template.uses_date:
            return self._on(_EPOCH + timedelta(days=now_s // 86400))._render(prompt)
        return self._render(prompt)

    def _on(self, day: datetime) -> Renderer:
        other = copy.copy(self)
        other._template = self._template.on(day)
        return other

    def _render(self, prompt: Prompt) -> RenderedPrompt:
        if prompt.continue_final and (
            not prompt.messages or prompt.messages[-1].role != "assistant"
        ):
            raise BadPrompt("only an assistant message can be continued")
        if prompt.raw is not None:
            return self._encode_raw(prompt, prompt.raw)
        guarded = self._guard.apply(prompt)
        try:
            return self._encode(prompt, self._lay_out(guarded), guarded.breaker)
        except UnicodeEncodeError as error:
            raise BadPrompt(
                "the prompt holds half a surrogate pair, which is no character"
            ) from error

    def text(self, prompt: Prompt) -> str:
        """The prompt's text as the model gets it: for tests and diagnosis, never to be logged."""
        guarded = self._guard.apply(prompt)
        return self._lay_out(guarded).text.replace(guarded.breaker, "")

    def _lay_out(self, guarded: Guarded) -> _Layout:
        prompt = guarded.prompt
        text = self._write(guarded, NoMarks())
        self._check_length(text, guarded.breaker)
        located = self._locate(guarded, text)
        if prompt.continue_final:
            text = text[: _end_of_answer(prompt, text, located)]
        begins, found = self._with_call_syntax(prompt, text, located)
        ends = {position: min(end, len(text)) for position, end in found.items()}
        begins = _before_spaces(text, begins, frozenset(ends.values()))
        cuts = sorted({0, len(text), *ends.values(), *begins})
        preamble = min(begins, default=0) if located.complete else 0
        return _Layout(text, tuple(cuts), ends, preamble, self._clock(guarded, text))

    def _check_length(self, text: str, breaker: str = "") -> None:
        if self._ceiling is not None:
            self._ceiling.check(text, breaker)

    def _clock(self, guarded: Guarded, text: str) -> int | None:
        """The first character that another day would change."""
        if not self._template.uses_date:
            return None
        others = [self._on(day)._write(guarded, NoMarks()) for day in _OTHER_DAYS]
        at = next(
            (
                i
                for i, letters in enumerate(zip(text, *others, strict=False))
                if len(set(letters)) > 1
            ),
            len(text),
        )
        return at if at < len(text) else None

    def _write(
        self, guarded: Guarded, marks: NoMarks | PrivateMarks, *, prompt: Prompt | None = None
    ) -> str:
        """The template's text of the guarded prompt, or of a part of it that does not go on after
        its last message."""
        whole = guarded.prompt
        conversation = build_conversation(prompt or whole, self._template.features, marks)
        text = self._template.render(
            conversation.messages,
            conversation.tools,
            add_generation_prompt=prompt is None and not whole.continue_final,
            options=whole.template_options,
        )
        if guarded.broken:  # a template may ask for JSON in ASCII
            text = text.replace(json.dumps(guarded.breaker)[1:-1], guarded.breaker)
        return text

    def _locate(self, guarded: Guarded, text: str) -> Located:
        """Marks first; content that a template treats otherwise when marked is given up and sought
        by rendering prefixes."""
        positions = [position for position, _ in guarded.prompt.positions()]
        unmarked_owners: frozenset[Owner] = frozenset()
        for _ in range(_MAX_MARKED_RENDERS):
            found = self._locate_by_marks(
                guarded, text, PrivateMarks(positions, guarded.alphabet, unmarked_owners)
            )
            if isinstance(found, Located):
                located = found
                break
            unmarked_owners |= found.owners
        else:
            unmarked_owners = frozenset(map(owner, positions))
            located = Located()
        if unmarked_owners:
            located.complete = False
            self._locate_by_prefixes(guarded, text, located, unmarked_owners)
        return located

    def _locate_by_marks(
        self, guarded: Guarded, text: str, marks: PrivateMarks
    ) -> Located | Mismatch:
        """A template that raises because of the marks does not say which: then every owner is given
        up."""
        try:
            return locate(text, self._write(guarded, marks), marks)
        except BadPrompt:
            return Mismatch(frozenset(map(owner, marks.positions)))

    def _locate_by_prefixes(
        self, guarded: Guarded, text: str, located: Located, wanted: Iterable[Owner]
    ) -> None:
        """A message ends where the text of the conversation up to it ends, if the whole text starts
        with that text."""
        for level, index in sorted(wanted):
            last, head = _up_to(guarded.prompt, level, index)
            if last is None or last in located.ends:
                continue
            try:
                written = self._write(guarded, NoMarks(), prompt=head)
            except BadPrompt:
                continue
            if text.startswith(written):
                located.ends[last] = len(written)

    def _with_call_syntax(
        self, prompt: Prompt, text: str, located: Located
    ) -> tuple[set[int], Mapping[Position, int]]:
        """Begins and ends with the text around a call's arguments counted to the call.

        So a call is one piece, encoded as the model wrote it: its last brackets, and what precedes
        its first, are often one token with what stands beside them.
        """
        form = self._template.features.calls
        calls = {
            Position("messages", i, j): part.name
            for i, message in enumerate(prompt.messages)
            for j, part in enumerate(message.parts)
            if isinstance(part, ToolCallPart)
        }
        if not calls or not self._template.features.tool_turns:
            return located.begins, located.ends
        openings = {form.opening(name) for name in calls.values()}
        longest = max(map(len, openings))
        begins = set()
        for begin in located.begins:
            is_call = text.endswith(form.middle, 0, begin)
            start = text.rfind(form.begin, max(0, begin - longest), begin) if is_call else -1
            begins.add(start if start >= 0 and text[start:begin] in openings else begin)
        ends = dict(located.ends)
        for position in calls.keys() & ends.keys():
            behind = (
                rest
                for rest in (form.end, form.end.removeprefix("}"))
                if text.startswith(rest, ends[position])
            )
            ends[position] += len(next(behind, ""))
        return begins, ends

    def _output_syntax(self, prompt: Prompt, layout: _Layout) -> OutputSyntax:
        reasoning = self._reasoning
        if reasoning is not None and not prompt.continue_final:
            tail = layout.text[max(layout.ends.values(), default=0) :]
            reasoning = replace(
                reasoning, begun=tail.rfind(reasoning.open) > tail.rfind(reasoning.close)
            )
        calls = self._template.features.calls if prompt.tools else None
        return OutputSyntax(calls, frozenset(tool.name for tool in prompt.tools), reasoning)

    def _encode_raw(self, prompt: Prompt, raw: str | tuple[int, ...]) -> RenderedPrompt:
        """Encode the client's own text or ids, control tokens included. Its positions end before
        the last token, which is always computed."""
        try:
            if isinstance(raw, str):
                self._check_length(raw)
            ids = self._tokenizer.encode(raw) if isinstance(raw, str) else raw
        except UnicodeEncodeError as error:
            raise BadPrompt(
                "the prompt holds half a surrogate pair, which is no character"
            ) from error
        if not ids:
            raise BadPrompt("the prompt is empty")
        if not isinstance(raw, str) and not all(map(self._tokenizer.token_bytes, raw)):
            raise BadPrompt("the prompt has a token id that the model does not know")
        return RenderedPrompt(
            ids, dict.fromkeys((position for position, _ in prompt.positions()), len(ids) - 1), 0
        )

    def _encode(self, prompt: Prompt, layout: _Layout, breaker: str) -> RenderedPrompt:
        ids: list[int] = []
        token_at = {0: 0}
        for start, end in zip(layout.cuts, layout.cuts[1:], strict=False):
            for piece in layout.text[start:end].split(breaker):
                if piece:
                    ids.extend(self._tokenizer.encode(piece))
            token_at[end] = len(ids)
        offsets: dict[Position, int] = {}
        reached = 0
        for position, _ in prompt.positions():
            reached = max(reached, token_at[layout.ends.get(position, 0)])
            offsets[position] = reached
        clock = (
            range(0) if layout.clock is None else self._clock_tokens(layout, layout.clock, token_at)
        )
        return RenderedPrompt(
            tuple(ids),
            offsets,
            token_at[layout.preamble],
            self._output_syntax(prompt, layout),
            clock,
        )

    def _clock_tokens(self, layout: _Layout, at: int, token_at: Mapping[int, int]) -> range:
        """From the token that holds character `at`, or the one before it, to the end of the piece
        it stands in."""
        start = max(cut for cut in layout.cuts if cut <= at)
        end = min(cut for cut in layout.cuts if cut > at)
        num_before = len(self._tokenizer.encode(layout.text[start:at])) if at > start else 0
        return range(token_at[start] + max(num_before - 1, 0), token_at[end])


def _up_to(prompt: Prompt, level: Level, index: int) -> tuple[Position | None, Prompt]:
    """The last position of a message or of the system text, and the prompt that ends there; None
    where no prompt does."""
    if level == "system" and index == len(prompt.system) - 1:
        return Position("system", index), msgspec.structs.replace(
            prompt, messages=(), continue_final=False
        )
    num_parts = len(prompt.messages[index].parts) if level == "messages" else 0
    continued = prompt.continue_final and index == len(prompt.messages) - 1
    last = Position("messages", index, num_parts - 1) if num_parts and not continued else None
    return last, msgspec.structs.replace(
        prompt, messages=prompt.messages[: index + 1], continue_final=False
    )


def _before_spaces(text: str, begins: Iterable[int], ends: frozenset[int]) -> set[int]:
    """`begins` moved in front of the spaces before them: vocabularies have words with their space,
    as models write them."""
    moved = set()
    for begin in begins:
        start = min(begin, len(text))
        while start and text[start - 1] == " " and start not in ends:
            start -= 1
        moved.add(start)
    return moved


def _end_of_answer(prompt: Prompt, text: str, located: Located) -> int:
    """The index at which the last message's content ends: generation goes on there, without the
    text that the template puts behind it."""
    index = len(prompt.messages) - 1
    ends = [end for position, end in located.ends.items() if owner(position) == ("messages", index)]
    if ends:
        return max(ends)
    texts = [
        part.text.strip()
        for part in prompt.messages[-1].parts
        if isinstance(part, TextPart) and part.text.strip()
    ]
    start = text.rfind(texts[-1]) if texts else -1
    if start < 0:
        raise BadPrompt("this model's chat template cannot continue an assistant message")
    return start + len(texts[-1])
