"""A chat template: messages in, the text the model sees out. Knows no positions and no token ids.

A model's own template renders here as transformers' `apply_chat_template` renders it
(`engine/prompt/jinja_environment.py`). It differs in the clock, which is a choice, and in errors.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import jinja2

from engine.errors import BadPrompt, ModelDamaged, ModelUnsupported
from engine.prompt.jinja_environment import chat_environment
from engine.prompt.template_features import TemplateFeatures, probe_features
from engine.prompt.tokenizer import Tokenizer

TemplateClock: TypeAlias = Literal["frozen", "utc_day", "off"]
"""The day that `strftime_now` gives a template: always the same, the request's own in UTC, or none
(then there is no such function)."""

FROZEN_DAY: Final = datetime(2024, 7, 26, tzinfo=UTC)
"""A template that prints the date must not make yesterday's prompts another prefix.

It is the day that the Llama 3 templates print without a date.
"""

_RESERVED: Final = ("messages", "tools", "documents", "add_generation_prompt")
_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One compiled template with the named tokens of one tokenizer. Immutable; rendering is a pure
    function.

    `features` are the shapes of conversation that the template can render, found by probing it
    once. Equal fingerprints render equal texts, where the template writes the date
    (`uses_date`) on one day.
    """

    def __init__(
        self, source: str, *, name: str, tokens: Mapping[str, str], clock: TemplateClock = "frozen"
    ) -> None:
        self.name = name
        self.source = source
        self.uses_date = clock == "utc_day" and "strftime_now" in source
        self._tokens = dict(tokens)
        self._day = None if clock == "off" else FROZEN_DAY
        try:
            self._template = chat_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelUnsupported(f"chat template {name!r} does not compile: {error}") from error
        key = json.dumps(
            [
                source,
                sorted(self._tokens.items()),
                FROZEN_DAY.isoformat() if clock == "frozen" else clock,
            ]
        )
        self.fingerprint = hashlib.sha256(key.encode()).hexdigest()
        self.features: TemplateFeatures = probe_features(self.render)

    @classmethod
    def load(
        cls, name: str, folder: Path, tokenizer: Tokenizer, clock: TemplateClock = "frozen"
    ) -> ChatTemplate:
        """The template `name`: one of those shipped, `model` for the model's own, or `auto`.

        `auto` prefers a shipped template where the vocabulary has its control tokens: `llama3`, or
        `chatml` unless the model's own ChatML template renders tools and tool results itself; else
        the model's own. Raises `ModelUnsupported` when there is none.
        """
        tokens = tokenizer.template_tokens
        if name not in ("auto", "model"):
            return cls(_shipped(name), name=name, tokens=tokens, clock=clock)
        source = _own(folder)
        if name == "auto":
            added = tokenizer.added_tokens
            if "<|start_header_id|>" in added:
                return cls(_shipped("llama3"), name="llama3", tokens=tokens, clock=clock)
            if {"<|im_start|>", "<|im_end|>"} <= added.keys():
                own = None if source is None else _usable(source, tokens, clock)
                return own or cls(_shipped("chatml"), name="chatml", tokens=tokens, clock=clock)
        if source is None:
            raise ModelUnsupported(
                f"{folder.name} has no chat template; name one of {', '.join(shipped_names())}"
            )
        return cls(source, name="model", tokens=tokens, clock=clock)

    def on(self, day: datetime) -> ChatTemplate:
        """The same template on another day; itself where it does not write the date."""
        if not self.uses_date:
            return self
        other = copy.copy(self)
        other._day = day
        return other

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation. Raises `BadPrompt` when the template refuses it or fails on
        it."""
        variables: dict[str, Any] = {**self._tokens, **(options or {})}
        if self._day is not None:
            variables["strftime_now"] = self._day.strftime
        variables.update(
            zip(_RESERVED, (messages, tools or None, None, add_generation_prompt), strict=True)
        )
        try:
            return self._template.render(variables)
        except _TEMPLATE_FAULTS as error:
            raise BadPrompt(self._explain(error)) from error

    def _explain(self, error: Exception) -> str:
        """The template's own words if they stand in it literally, so that no message text can be
        among them."""
        words = str(error)
        if type(error) is jinja2.TemplateError and words and words in self.source:
            return f"the chat template refuses these messages: {words}"
        return (
            f"the chat template {self.name!r} cannot render these messages ({type(error).__name__})"
        )


def shipped_names() -> list[str]:
    """Names of the templates in this package."""
    return sorted(
        Path(entry.name).stem for entry in _folder().iterdir() if entry.name.endswith(".jinja")
    )


def _folder() -> Any:
    return resources.files("engine.prompt") / "templates"


def _shipped(name: str) -> str:
    if name not in shipped_names():
        raise ModelUnsupported(
            f"no chat template {name!r}; there are auto, model, {', '.join(shipped_names())}"
        )
    return str((_folder() / f"{name}.jinja").read_text(encoding="utf-8"))


def _own(folder: Path) -> str | None:
    """The model's own default template: chat_template.jinja, else the field of
    tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return None
    try:
        found = json.loads(config.read_bytes()).get("chat_template")
    except ValueError as error:
        raise ModelDamaged(f"tokenizer_config.json is not JSON: {error}") from error
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if isinstance(found, str) else None


def _usable(source: str, tokens: Mapping[str, str], clock: TemplateClock) -> ChatTemplate | None:
    """The model's own template, if it compiles and renders every shape of a tool conversation."""
    try:
        own = ChatTemplate(source, name="model", tokens=tokens, clock=clock)
    except ModelUnsupported:
        return None
    return own if own.features.tools and own.features.tool_turns else None
