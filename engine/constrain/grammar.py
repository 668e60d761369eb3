"""The form of an answer as the text of a grammar for llguidance.

Knows no vocabulary.

JSON has at most one space between two of its parts, and exactly those of past calls in a call, and
its numbers have bounds: a small model could go on with blanks or digits for ever. Keywords of a
schema that the grammar can't keep are refused for an output format, and left out for the arguments
of a tool, which has no word to say that they are a mere hint; a schema that is none at all leaves
an object.

Source: https://github.com/guidance-ai/llguidance, docs/syntax.md and docs/json_schema.md (1.9,
2026-11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llguidance import LLMatcher

from engine.constrain.budget import Budget, check_schema, checked_lark
from engine.constrain.digits import ANY_OBJECT, bound_digits
from engine.errors import BadFormat, BadTools
from engine.prompt.call_format import CallFormat
from engine.prompt.guard import any_of
from engine.prompt.numerals import as_numbers, to_text
from engine.prompt.reasoning import Reasoning
from engine.prompt.types import Tool
from engine.types import OutputFormat, ToolChoice

MAX_CHARACTERS: Final = 128 * 1024
"""Of a grammar, a schema, or the schemas of all tools that may have to be called."""

MAX_TOOLS: Final = 256
"""Tools among which an answer may have to choose."""

MAX_CALLS: Final = 16
"""Calls in one forced answer: a small model could go on calling for ever."""

_JSON: Final = {
    "whitespace_flexible": True,
    "whitespace_pattern": " ?",
    "coerce_one_of": False,
    "lenient": False,
}
_CALL_JSON: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As past calls are rendered (`engine/prompt/canonical.py`), so that the next turn hits through a
forced one."""


def format_grammar(output: OutputFormat) -> str:
    """The grammar of an output format. Raises `BadFormat` for a schema that is no JSON object, and
    for what is too much to be compiled; the rest is the compiler's."""
    if len(output.definition) > MAX_CHARACTERS:
        raise BadFormat(f"the definition has more than {MAX_CHARACTERS} characters")
    match output.kind:
        case "json_object":
            return _json_grammar(ANY_OBJECT)
        case "json_schema":
            schema = _decoded(output.definition)
            check_schema(schema)
            return _json_grammar(schema)
        case "regex":
            return LLMatcher.grammar_from_regex(output.definition)
        case "lark":
            return _lark_grammar(checked_lark(output.definition))


def calls_grammar(
    calls: CallFormat, tools: Sequence[Tool], choice: ToolChoice, special_tokens: Mapping[str, int]
) -> str | None:
    """The grammar of an answer that is nothing but calls of the chosen `tools`; None where none has
    to be called.

    One call where one tool is named or calls mustn't come together, else up to `MAX_CALLS`. Raises
    `BadTools` for more tools than can be kept apart, and for schemas that cannot be kept.
    """
    offered = [tool for tool in tools if not choice.names or tool.name in choice.names]
    if choice.mode != "required" or not offered:
        return None
    if len(offered) > MAX_TOOLS:
        raise BadTools(f"tool_choice: more than {MAX_TOOLS} tools to choose from")
    if sum(map(_num_characters, offered)) > MAX_CHARACTERS:
        raise BadTools(
            f"tool_choice: the schemas of the tools have more than {MAX_CHARACTERS} characters"
        )
    budget = Budget()
    write = _Writer({tag: special_tokens[tag] for tag in calls.tags if tag in special_tokens})
    is_one = len(choice.names) == 1 or not choice.parallel
    more = "" if is_one else f"({write.text(calls.between)} call){{0,{MAX_CALLS - 1}}}"
    rules = [
        "%llguidance {}",
        f"start: {write.text(calls.before)} call {more} {write.text(calls.after)}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(offered))),
    ]
    for i, tool in enumerate(offered):
        rules.append(
            f"call_{i}: {write.text(calls.opening(tool.name))} arguments_{i} "
            f"{write.text(calls.end)}"
        )
        rules.append(f"arguments_{i}: %json {json.dumps(arguments_schema(tool, budget))}")
    return _lark_grammar("\n".join(rules))


def arguments_schema(tool: Tool, budget: Budget) -> dict[str, Any]:
    """The schema of a tool's arguments: always an object. Raises `BadTools` where it cannot be kept
    within the budget."""
    parameters = as_numbers(tool.parameters)
    problem = budget.excess(parameters)
    if problem is not None:
        raise BadTools(f"the schema of {tool.name!r} costs too much: {problem}")
    try:
        bounded = bound_digits(parameters)
    except BadFormat as error:
        raise BadTools(f"the schema of {tool.name!r} cannot be kept: {error}") from None
    return {
        **bounded,
        "type": "object",
        "x-guidance": {**_CALL_JSON, "lenient": True, "coerce_one_of": True},
    }


def _num_characters(tool: Tool) -> int:
    try:
        return len(to_text(tool.parameters, allow_nan=False))
    except (ValueError, RecursionError):
        raise BadTools(
            f"the schema of {tool.name!r} is nested too deeply, or holds an infinite number"
        ) from None


def behind_reasoning(grammar: str, reasoning: Reasoning, special_tokens: Mapping[str, int]) -> str:
    """The grammar of an answer in a form with reasoning in front of it: open already, or as the
    model likes."""
    tags = {
        tag: special_tokens[tag]
        for tag in (reasoning.open, reasoning.close)
        if tag in special_tokens
    }
    write = _Writer(tags)
    if reasoning.close in tags:
        rules = [f"thought: TEXT {write.text(reasoning.close)}", "TEXT: /(.|\\n)*/"]
    else:
        rules = [f"thought[lazy]: /(.|\\n)*/ {write.text(reasoning.close)}"]
    thinks = (
        "thought BLANK" if reasoning.begun else f"({write.text(reasoning.open)} thought BLANK)?"
    )
    lark = "\n".join([f"start: {thinks} @form", *rules, "BLANK: /\\n{0,2}/"])
    form, *others = json.loads(grammar)["grammars"]
    return json.dumps(
        {"grammars": [{"name": "answer", "lark_grammar": lark}, {**form, "name": "form"}, *others]}
    )


def _decoded(definition: str) -> Any:
    try:
        return json.loads(definition)
    except (ValueError, RecursionError):
        raise BadFormat("the schema is not a JSON object") from None


def _json_grammar(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        raise BadFormat("the schema is not a JSON object")
    try:
        bounded = json.dumps(bound_digits(schema), allow_nan=False)
    except (ValueError, RecursionError):
        raise BadFormat("the schema is nested too deeply, or holds an infinite number") from None
    try:
        return LLMatcher.grammar_from_json_schema(bounded, overrides=_JSON)  # type: ignore[arg-type]
    except ValueError:
        raise BadFormat("the schema is not a JSON object") from None


def _lark_grammar(definition: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": definition}]})


class _Writer:
    """Writes text as Lark, with control tokens as tokens."""

    def __init__(self, tags: Mapping[str, int]) -> None:
        self._tags = tags
        self._pattern = any_of(tags)

    def text(self, text: str) -> str:
        """Quoted text and numbered tokens; nothing for no text."""
        pieces, start = [], 0
        for match in self._pattern.finditer(text):
            pieces += [_quoted(text[start : match.start()]), f"<[{self._tags[match[0]]}]>"]
            start = match.end()
        return " ".join(piece for piece in [*pieces, _quoted(text[start:])] if piece)


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""
