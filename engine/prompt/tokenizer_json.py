"""Rewrites a tokenizer.json so that pieces of a text encode independently.

Pure data in, data out; knows no files.

Many tokenizers treat the start of their input as the start of a sentence: they put a space before
it, strip it, or add BOS. Here an input is a piece out of the middle of a prompt, and a split must
not show in the ids' text. Removed are prefix spaces (`Prepend`, `Metaspace`, `ByteLevel`),
`Strip`, post-processors, truncation and padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

Component: TypeAlias = dict[str, Any]

SPACE_MARK: Final = "▁"

_CHILDREN: Final = ("normalizers", "pretokenizers", "decoders")


def position_independent(spec: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer with nothing that depends on where its input starts or ends. `spec` itself
    is not changed."""
    return {
        **spec,
        "normalizer": _rewrite(spec.get("normalizer"), _plain_step),
        "pre_tokenizer": _rewrite(spec.get("pre_tokenizer"), _plain_step),
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def steps(component: Component | None) -> Iterator[Component]:
    """The steps of a normalizer, pre-tokenizer or decoder, sequences flattened."""
    if component is None:
        return
    children = next((component[key] for key in _CHILDREN if key in component), None)
    if children is None:
        yield component
        return
    for child in children:
        yield from steps(child)


def _rewrite(
    component: Component | None, change: Callable[[Component], Component | None]
) -> Component | None:
    if component is None:
        return None
    for key in _CHILDREN:
        if key in component:
            changed = (_rewrite(child, change) for child in component[key])
            return {**component, key: [child for child in changed if child is not None]}
    return change(component)


def _plain_step(step: Component) -> Component | None:
    match step["type"]:
        case "Prepend" | "Strip":
            return None
        case "Metaspace":
            kept = {
                key: value
                for key, value in step.items()
                if key not in ("add_prefix_space", "str_rep")
            }
            return {**kept, "prepend_scheme": "never"}
        case "ByteLevel":
            return {**step, "add_prefix_space": False}
        case _:
            return step
