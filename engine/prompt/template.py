"""A chat template: messages in, the text the model sees out. Knows no positions and no token ids.

The Jinja environment is that of transformers' `apply_chat_template` (5.24, 2026-08): same flags,
filters and globals, so a model's own template renders here as it did in training. The differences
are the clock, which is a choice, and errors.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engine.errors import BadPrompt, ModelDamaged, ModelUnsupported
from engine.prompt.abilities import Abilities, probe
from engine.prompt.marks import to_json_marked

TemplateClock: TypeAlias = Literal["frozen", "utc_day", "off"]
"""What `strftime_now` tells a template: one day for ever, the day a request began in UTC, or
nothing: it is not there."""

FROZEN_DAY: Final = datetime(2024, 7, 26, tzinfo=UTC)
"""A template that prints the date must not make yesterday's prompts another prefix.

The day is the one that the Llama 3 templates print when they are given no date.
"""

_RESERVED: Final = ("messages", "tools", "documents", "add_generation_prompt")
_DICT_NAMES: Final = frozenset(dir(dict))
_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class Vocabulary(Protocol):
    """What a template needs to know of a tokenizer."""

    @property
    def added_tokens(self) -> Mapping[str, int]: ...

    @property
    def template_tokens(self) -> Mapping[str, str]: ...


class ChatTemplate:
    """One compiled template with the named tokens of one tokenizer. Immutable; rendering is a pure
    function.

    `abilities` says which shapes of conversation the template can render, found by probing it once.
    `tools_first`: tool definitions stand before the system text, so they stay cached when the
    system text changes. Equal fingerprints render equal texts, where the template tells the day
    (`tells_day`) on one day.
    """

    def __init__(
        self, source: str, *, name: str, tokens: Mapping[str, str], clock: TemplateClock = "frozen"
    ) -> None:
        self.name = name
        self.source = source
        self.tells_day = clock == "utc_day" and "strftime_now" in source
        self._tokens = dict(tokens)
        self._day = None if clock == "off" else FROZEN_DAY
        try:
            self._template = _environment().from_string(source)
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
        self.abilities: Abilities = probe(self.render)

    @classmethod
    def load(
        cls, name: str, folder: Path, tokenizer: Vocabulary, clock: TemplateClock = "frozen"
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
        """The same template on another day; itself where it does not tell the day."""
        if not self.tells_day:
            return self
        other = copy.copy(self)
        other._day = day
        return other

    @property
    def tools_first(self) -> bool:
        return self.abilities.tools_first

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
    return own if own.abilities.tools and own.abilities.tool_turns else None


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _DictType:
    """The global `dict`: can be called and has `fromkeys`, but is not the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Jinja's namespace without underscore names, which would lead into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may pass a variable named `self`
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("chat templates may not use names that start with an underscore")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return to_json_marked(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _Environment(ImmutableSandboxedEnvironment):
    """Finds the keys of messages first, which is most of what templates ask for, and a sixth of the
    time of rendering."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _DICT_NAMES:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _DictType()
    environment.globals["namespace"] = _Namespace
    return environment
