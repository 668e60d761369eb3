"""A policy file -> a frozen `Policy`, or everything that is wrong with it.

The shipped presets lie beneath every file.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from policies.checks import conflicts
from policies.document import Document, KeyPath, parse_document
from policies.errors import PolicyError, Problem
from policies.explain import explain
from policies.interpolate import Interpolator
from policies.schema import Policy

__all__ = ["PolicyError", "Problem", "load_policy", "parse_policy"]

PRESETS: Final = ("default", "anthropic", "openai", "gemini", "others", "prices")
"""Files in `presets/`, policy files like any other, merged in this order before the operator's
own."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def load_policy(
    path: Path | None, environ: Mapping[str, str], *, overrides: Mapping[str, Any] = _NOTHING
) -> Policy:
    """Reads a policy file, or the shipped policy for None. Raises PolicyError with all problems
    found.

    `${ENV:NAME}` is looked up in `environ`. `overrides` is merged last, in the file's own shape:
    `{"server": {"port": 0}}`.
    """
    if path is None:
        return parse_policy(
            "", file="<defaults>", environ=environ, folder=Path(), overrides=overrides
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise PolicyError([Problem(str(path), None, None, "", f"cannot read: {reason}")]) from None
    return parse_policy(
        text, file=str(path), environ=environ, folder=path.parent, overrides=overrides
    )


def parse_policy(
    text: str,
    *,
    file: str,
    environ: Mapping[str, str],
    folder: Path,
    overrides: Mapping[str, Any] = _NOTHING,
) -> Policy:
    """As `load_policy`, for text in hand. `file` names it in problems; `${FILE:...}` is relative to
    `folder`."""
    document = parse_document(text, file=file, interpolator=Interpolator(environ, folder))
    document.overridden.update(_leaves(overrides))
    data = merge(merge(shipped(environ), document.data), overrides)
    try:
        policy = Policy.model_validate(data)
    except ValidationError as error:
        errors = [
            details
            for details in error.errors(include_url=False)
            if not _is_known(document, details["loc"])
        ]
        raise PolicyError(
            _in_order([*document.problems, *(explain(details, document) for details in errors)])
        ) from None
    problems = [
        *document.problems,
        *(document.problem(conflict.path, conflict.message) for conflict in conflicts(policy)),
    ]
    if problems:
        raise PolicyError(_in_order(problems))
    return policy


def shipped(environ: Mapping[str, str] = _NOTHING) -> dict[str, Any]:
    """The data of the shipped presets, merged."""
    data: dict[str, Any] = {}
    folder = importlib.resources.files("policies") / "presets"
    for name in PRESETS:
        text = (folder / f"{name}.yaml").read_text("utf-8")
        document = parse_document(
            text, file=f"presets/{name}.yaml", interpolator=Interpolator(environ, Path())
        )
        if document.problems:
            raise PolicyError(document.problems)
        data = merge(data, document.data)
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key, anything else is replaced; an empty (null) value changes
    nothing."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            former = merged.get(key)
            merged[key] = merge(former if isinstance(former, Mapping) else {}, value)
        else:
            merged[key] = _filled(value)
    return merged


def _filled(value: Any) -> Any:
    """A list whose mappings have lost their empty keys."""
    if isinstance(value, list):
        return [merge({}, item) if isinstance(item, Mapping) else _filled(item) for item in value]
    return value


def _leaves(data: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, key))
        elif value is not None:
            yield (*prefix, key)


def _is_known(document: Document, location: KeyPath) -> bool:
    """Whether the value was broken before validation, so that only a placeholder was validated."""
    return any(location[:length] in document.broken for length in range(len(location) + 1))


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
