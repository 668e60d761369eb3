"""Keeps control tokens that a client typed from becoming control tokens.

Knows no templates' structure and no ids.

Every control token's text inside client content gets a private-use character, the breaker, after
its first character. It travels through the template with the content, wherever that goes, and is
taken out again before tokens are made: the text is split there, so no piece holds the whole token.
Content without such text is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import msgspec

from engine.errors import BadPrompt
from engine.prompt.canonical import to_json
from engine.prompt.position_marks import PRIVATE
from engine.prompt.types import Message, Part, Prompt, Role, Tool, ToolCallPart

_RANGES: Final = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))


@dataclass(frozen=True, slots=True)
class Guarded:
    """A prompt whose control tokens are broken by `breaker`. Neither it nor the template has a
    character of `alphabet`."""

    prompt: Prompt
    breaker: str
    alphabet: str
    broken: bool


class Guard:
    """Knows the control tokens of one tokenizer and template.

    Control tokens are the special tokens and, in text that is not the model's own, the added tokens
    the template writes itself (`<think>`, `<tool_response>`, ...). The model may write those, so in
    assistant turns they stay what they are.
    """

    def __init__(
        self, special_tokens: Iterable[str], added_tokens: Iterable[str], template_source: str
    ) -> None:
        special = [token for token in special_tokens if len(token) > 1]
        written = [
            token
            for token in added_tokens
            if _looks_like_markup(token) and token in template_source
        ]
        self._model = any_of(special)
        self._client = any_of([*special, *written])
        self._reserved = frozenset(PRIVATE.findall(template_source))

    def apply(self, prompt: Prompt) -> Guarded:
        """`prompt` itself when it holds no control token. Raises `BadPrompt` if no private-use
        character is free."""
        foreign = set(self._reserved)
        suspicious = False
        for role, text in _texts(prompt):
            suspicious = suspicious or self._pattern(role).search(text) is not None
            if not text.isascii():
                foreign.update(PRIVATE.findall(text))
        num_positions = sum(1 for _ in prompt.positions())
        free = (character for character in map(chr, chain(*_RANGES)) if character not in foreign)
        breaker = next(free, None)
        if breaker is None:
            raise BadPrompt("the prompt uses every private-use character of Unicode")
        alphabet = "".join(islice(free, 2 * num_positions))
        return Guarded(
            self._broken(prompt, breaker) if suspicious else prompt, breaker, alphabet, suspicious
        )

    def _pattern(self, role: Role) -> re.Pattern[str]:
        return self._model if role == "assistant" else self._client

    def _broken(self, prompt: Prompt, breaker: str) -> Prompt:
        client = _Breaker(self._client, breaker)
        return msgspec.structs.replace(
            prompt,
            tools=tuple(client.tool(tool) for tool in prompt.tools),
            system=tuple(
                msgspec.structs.replace(block, text=client.text(block.text))
                for block in prompt.system
            ),
            messages=tuple(self._broken_message(message, breaker) for message in prompt.messages),
            template_options=client.data(prompt.template_options),
        )

    def _broken_message(self, message: Message, breaker: str) -> Message:
        break_ = _Breaker(self._pattern(message.role), breaker)
        return msgspec.structs.replace(
            message, parts=tuple(break_.part(part) for part in message.parts)
        )


class _Breaker:
    """Inserts `breaker` after the first character of every match."""

    def __init__(self, pattern: re.Pattern[str], breaker: str) -> None:
        self._pattern = pattern
        self._breaker = breaker

    def text(self, text: str) -> str:
        pieces, start = [], 0
        while (match := self._pattern.search(text, start)) is not None:
            pieces.append(text[start : match.start() + 1])
            start = match.start() + 1
        return self._breaker.join([*pieces, text[start:]])

    def data(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.data(key): self.data(item) for key, item in value.items()}
            case list() | tuple():
                return [self.data(item) for item in value]
            case _:
                return value

    def part(self, part: Part) -> Part:
        if isinstance(part, ToolCallPart):
            return msgspec.structs.replace(
                part, name=self.text(part.name), arguments=self.data(part.arguments)
            )
        return msgspec.structs.replace(part, text=self.text(part.text))

    def tool(self, tool: Tool) -> Tool:
        return msgspec.structs.replace(
            tool,
            name=self.text(tool.name),
            description=self.text(tool.description),
            parameters=self.data(tool.parameters),
        )


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of `texts`, the longest at a place. Costs no more for thousands of
    texts than for one."""
    trie: dict[str, Any] = {}
    for text in texts:
        node = trie
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_alternatives(trie) if trie else r"(?!)")


def _alternatives(node: Mapping[str, Any]) -> str:
    branches = [
        re.escape(character) + _alternatives(child)
        for character, child in node.items()
        if character
    ]
    if not branches:
        return ""
    if len(branches) == 1 and "" not in node:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if '' in node else ''}"


def _looks_like_markup(token: str) -> bool:
    """Added tokens can also be runs of spaces or common words, which a template's source holds by
    chance."""
    return (
        len(token) > 2
        and not token[0].isalnum()
        and not any(character.isspace() for character in token)
    )


def _texts(prompt: Prompt) -> Iterator[tuple[Role, str]]:
    """Every text of the client, with the role that decides what may stand in it."""
    for tool in prompt.tools:
        yield "user", to_json([tool.name, tool.description, tool.parameters])
    for block in prompt.system:
        yield "system", block.text
    for message in prompt.messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                yield message.role, to_json([part.name, part.arguments])
            else:
                yield message.role, part.text
    if prompt.template_options:
        yield "user", to_json(prompt.template_options)
