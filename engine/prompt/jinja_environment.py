"""The Jinja environment of chat templates: sandboxed, and equal to transformers' own.

Flags, filters and globals are those of transformers' `apply_chat_template` (5.24, 2026-08).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engine.prompt.position_marks import to_json_marked

_DICT_NAMES: Final = frozenset(dir(dict))


def chat_environment() -> ImmutableSandboxedEnvironment:
    """A new environment; `strftime_now` is not in it, as a template's clock is a choice."""
    environment = _ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _DictType()
    environment.globals["namespace"] = _Namespace
    return environment


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


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    """Finds the keys of messages first, which is most of what templates ask for, and a sixth of the
    time of rendering."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _DICT_NAMES:
            return obj[attribute]
        return super().getattr(obj, attribute)
