"""The single internal request: what every wire format is parsed into.

Knows no HTTP and no provider.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from engine.prompt.types import Prompt
from engine.types import CachePlan, Sampling
from policies.rules import UsageField

WireName: TypeAlias = Literal["anthropic", "openai"]

REST_OF_CONTEXT: Final = 2**31 - 1
"""`sampling.max_tokens` of a request without a limit: the engine clamps it to the free context."""


class MarkerProblem(msgspec.Struct, frozen=True):
    """A cache mark where none may stand, already taken out of the prompt. Whether it is an error is
    the dialect's choice.

    `warning` names the repair, as `pcg-warning` shows it.
    """

    path: str
    message: str
    warning: str


class Unseen(msgspec.Struct, frozen=True):
    """A part of the body that the model cannot see. The prompt names it in its place, and is not to
    be generated from."""

    path: str
    message: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request to generate an answer.

    `model` is the id the client asked for; it chooses dialect and price and never enters a cache
    key. `parameters` are request fields that are not rendered but may invalidate a level
    (`tool_choice`, `thinking`, `effort`, ...). `wire_options` are wishes about the answer's form
    that only its wire format reads (`include_usage`, ...). `unseen` is refused once the marks have
    been checked, as a provider checks them first. `ttl_classes` are the lifetimes of the model's
    TTL classes by name and `usage_fields` what usage shows besides, once they are known.
    `automatic` is the client's request-level cache mark, if any. `prewarm` means: read and write
    the cache, generate nothing. `num_choices` answers are wanted to each prompt; `other_prompts`
    are asked beside `prompt`, have positions like it, and are cached by the same plan.
    `routing_key` is a hash of what the client says its requests belong together by, empty where it
    says nothing. `end_user` is its own name for whom it asks: neither the model nor anybody else is
    told. `read_cache`, `store_cache`, `max_age_s` and `only_if_cached` are the client's
    `Cache-Control: no-cache`, `no-store`, `max-age` and `only-if-cached`. `nbytes` is the size of
    its body and of all that the body refers to.
    """

    id: str
    wire: WireName
    model: str
    prompt: Prompt
    sampling: Sampling
    stream: bool = False
    automatic: float | None = None
    prewarm: bool = False
    other_prompts: tuple[Prompt, ...] = ()
    num_choices: int = 1
    read_cache: bool = True
    store_cache: bool = True
    max_age_s: float | None = None
    only_if_cached: bool = False
    marker_problems: tuple[MarkerProblem, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    ttl_classes: dict[str, float] = {}
    usage_fields: tuple[UsageField, ...] = ()
    parameters: dict[str, Any] = {}
    wire_options: dict[str, Any] = {}
    tenant: str = "default"
    routing_key: bytes = b""
    end_user: str = ""
    plan: CachePlan = CachePlan()
    started_at_s: float = 0.0
    warnings: tuple[str, ...] = ()
    nbytes: int = 0

    @property
    def num_prompts(self) -> int:
        return 1 + len(self.other_prompts)

    @property
    def num_answers(self) -> int:
        """Of all prompts together; those to one prompt follow each other."""
        return self.num_prompts * self.num_choices
