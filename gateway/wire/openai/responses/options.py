"""Options of the Responses API that nothing but its own encoders and its memory reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from engine.prompt.types import Message
from gateway.request import WireOptions


class Referred(msgspec.Struct, frozen=True):
    """An input item that only names an item of an earlier response. `index` is its place in the
    input."""

    id: str
    index: int


InputItem: TypeAlias = Message | Referred
"""One item of the input: a turn, or a part of one, or a reference."""


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits by which requests are compared: a hash per setting, and for each part of the
    input its hash and length."""

    settings: Mapping[str, bytes]
    input: Sequence[bytes]
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class TraitsPair:
    """The traits of a request, and of the one it is compared with, if that is known."""

    now: Traits
    earlier: Traits | None


class ResponsesOptions(WireOptions, frozen=True, kw_only=True):
    """Options that only this format reads.

    `echo` are the fields that a response repeats of its request, `custom_tools` the names of custom
    tools, `namespaced` the namespaces and own names of tools that the model knows by joined names.
    `items` is the input as a tree, `listed` the same as JSON, as `input_items` shows it.
    `num_instructions` of the prompt's system blocks are this request's alone. `compared` is known
    once the response `comparison_response_id` has been looked up.
    """

    previous_response_id: str = ""
    comparison_response_id: str = ""
    num_instructions: int = 0
    custom_tools: frozenset[str] = frozenset()
    namespaced: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    seal_reasoning: bool = False
    items: tuple[InputItem, ...] = ()
    listed: tuple[dict[str, Any], ...] = ()
    ttl: str = ""
    sealed_room: int = 0
    echo: dict[str, Any] = msgspec.field(default_factory=dict)
    compared: TraitsPair | None = None
