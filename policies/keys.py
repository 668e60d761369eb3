"""The names in the schema: every key, and what a mistyped one may have meant. Knows no values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from policies.document import KeyPath
from policies.schema import Policy


def key_paths(model: type[BaseModel] = Policy, prefix: str = "") -> Iterator[str]:
    """Every key of the schema, in its order: `server`, `server.port`, `models`, `models[].name`,
    ..."""
    for name, info in model.model_fields.items():
        yield prefix + name
        inner, is_list = _inner_model(info.annotation)
        if inner is not None:
            yield from key_paths(inner, f"{prefix}{name}{'[]' if is_list else ''}.")


def sections(model: type[BaseModel] = Policy) -> Iterator[type[BaseModel]]:
    """Every section of the schema once per place it is used in, the whole policy first."""
    yield model
    for info in model.model_fields.values():
        inner, _ = _inner_model(info.annotation)
        if inner is not None:
            yield from sections(inner)


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


def _model_at(path: KeyPath) -> type[BaseModel] | None:
    model: type[BaseModel] | None = Policy
    for part in path:
        if isinstance(part, str) and model is not None:
            info = model.model_fields.get(part)
            model = _inner_model(info.annotation)[0] if info else None
    return model


def _inner_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section a field holds, and whether it holds a list of them."""
    is_list = get_origin(annotation) is tuple
    inner = get_args(annotation)[0] if is_list else annotation
    return (
        (inner, is_list)
        if isinstance(inner, type) and issubclass(inner, BaseModel)
        else (None, is_list)
    )
