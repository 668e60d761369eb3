"""Turns pydantic's errors into problems with a place, plain words and "did you mean".

Shows no secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic_core import ErrorDetails

from policies.document import Document, KeyPath
from policies.errors import Problem
from policies.keys import similar, similar_key

_WORDS: Final[Mapping[str, str]] = {
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "model_type": "must be a mapping",
    "tuple_type": "must be a list",
}
_CHOICE: Final = re.compile(r"'([^']*)'")
_MAX_SHOWN: Final = 40


def explain(error: ErrorDetails, document: Document) -> Problem:
    """One problem per pydantic error."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return _unknown_key(path, document)
    message = _words(error)
    if len(path) != len(error["loc"]):
        return document.problem(path, message, at_key=True)
    value = error["input"]
    if (
        error["type"] in _WORDS
        or not isinstance(value, str | int | float)
        or not _may_show(value, path, document)
    ):
        return document.problem(path, message)
    suggestion = similar(str(value), _choices(error)) if error["type"] == "literal_error" else None
    return document.problem(path, f"{message}, not {_quote(value)}", suggestion=suggestion)


def _unknown_key(path: KeyPath, document: Document) -> Problem:
    return document.problem(path, "unknown key", at_key=True, suggestion=similar_key(path))


def _words(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        *first, last = (f'"{choice}"' for choice in _choices(error))
        return f"must be {', '.join(first)} or {last}"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}"
    return _WORDS.get(kind, error["msg"])


def _choices(error: ErrorDetails) -> list[str]:
    return _CHOICE.findall(error.get("ctx", {})["expected"])


def _may_show(value: str | int | float, path: KeyPath, document: Document) -> bool:
    """Nothing that came from the environment or a file, nothing near an API key or a password,
    nothing long or of lines."""
    secret = (
        path[:1] == ("tenants",)
        or path[:2] == ("tiers", "redis")
        or path[-1:] in (("api_key",), ("base_url",))
    )
    text = str(value)
    return (
        path not in document.interpolated
        and not secret
        and len(text) <= _MAX_SHOWN
        and text.isprintable()
    )


def _quote(value: str | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
