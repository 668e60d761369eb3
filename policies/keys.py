"""The keys of the schema, their defaults, and the key that a mistyped one may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from policies.document import KeyPath
from policies.rules import PresetPolicy
from policies.schema import Policy
from policies.sections import Section


def key_paths(model: type[Section] = Policy, prefix: str = "") -> Iterator[str]:
    """Every key of the schema, in its order: `server`, `server.port`, `models`, `models[].name`,
    ..."""
    for name, info in model.model_fields.items():
        yield prefix + name
        inner, is_list = _inner_model(info.annotation)
        if inner is not None:
            yield from key_paths(inner, f"{prefix}{name}{'[]' if is_list else ''}.")


def sections(model: type[Section] = Policy) -> Iterator[type[Section]]:
    """Every section of the schema once per place it is used in, the whole policy first."""
    yield model
    for info in model.model_fields.values():
        inner, _ = _inner_model(info.annotation)
        if inner is not None:
            yield from sections(inner)


def without_default(section: type[Section]) -> set[str]:
    """The keys of a section that have no default of their own: a provider's rules are shipped, and
    in a line of `dialects` they are the preset's."""
    return set(PresetPolicy.model_fields) if issubclass(section, PresetPolicy) else set()


def similar_key(path: KeyPath) -> str | None:
    """A sibling with a similar name, else the one place of the schema that has a key of this very
    name."""
    model = _model_at(path[:-1])
    name = str(path[-1])
    sibling = similar(name, model.model_fields) if model else None
    if sibling is not None:
        return sibling
    elsewhere = [key for key in key_paths() if key.rpartition(".")[2] == name]
    return elsewhere[0] if len(elsewhere) == 1 else None


def similar(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, if one is like it at all."""
    return next(iter(difflib.get_close_matches(name, list(candidates), n=1)), None)


def _model_at(path: KeyPath) -> type[Section] | None:
    model: type[Section] | None = Policy
    for part in path:
        if isinstance(part, str) and model is not None:
            info = model.model_fields.get(part)
            model = _inner_model(info.annotation)[0] if info else None
    return model


def _inner_model(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section a field holds, and whether it holds a list of them."""
    is_list = get_origin(annotation) is tuple
    inner = get_args(annotation)[0] if is_list else annotation
    return (
        (inner, is_list)
        if isinstance(inner, type) and issubclass(inner, Section)
        else (None, is_list)
    )
