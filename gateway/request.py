"""The single internal request: every wire format is parsed into it.

Knows no HTTP and no provider.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from engine.prompt.types import Prompt
from engine.types import CachePlan, Sampling
from policies.rules import UsageField

WireName: TypeAlias = str
"""The provider whose format a request came in: `anthropic`, `openai`, ..."""

REST_OF_CONTEXT: Final = 2**31 - 1
"""`sampling.max_tokens` of a request without a limit: the engine clamps it to the free context."""


class MarkerProblem(msgspec.Struct, frozen=True):
    """A cache mark where none may stand, already taken out of the prompt. The dialect decides
    whether it is an error.

    `warning` names the repair, as `pcg-warning` shows it.
    """

    path: str
    message: str
    warning: str


class Unseen(msgspec.Struct, frozen=True):
    """A part of the body that the model cannot see. The prompt names it in its place, and no
    answer is generated. Clients branch on `code`, and on what is `unsupported`."""

    path: str
    message: str
    code: str | None = None
    unsupported: tuple[str, ...] = ()


class Directives(msgspec.Struct, frozen=True):
    """The client's `Cache-Control` (RFC 9111, section 5.2.1) for the prefix cache.

    `no-cache`: read nothing. `no-store`: read nothing and keep nothing. `max-age`: read nothing
    that was written longer ago. `only-if-cached`: fail where nothing of the prompt can be read.
    """

    read: bool = True
    store: bool = True
    max_age_s: float | None = None
    only_if_cached: bool = False


class WireOptions(msgspec.Struct, frozen=True):
    """Settings that only the request's own wire format reads. Each format has a subclass."""


OptionsT = TypeVar("OptionsT", bound=WireOptions)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request to generate an answer.

    `model` is the id the client asked for; it chooses dialect and price and never enters a cache
    key. `parameters` are request fields that are not rendered but may invalidate a level
    (`tool_choice`, `thinking`, `effort`, ...). `unseen` is refused once the marks have been
    checked, as a provider checks them first. `ttl_classes` are the lifetimes of the model's TTL
    classes by name, and `usage_fields` the further fields that usage shows, once they are known.
    `automatic` is the client's request-level cache mark, if any. `prewarm` means: read and write
    the cache, generate nothing. `num_choices` answers are generated for each prompt;
    `other_prompts` are asked beside `prompt`, have positions like it, and are cached by the same
    plan. `routing_key` is a hash that related requests share, empty without one. `end_user` is the
    client's name for its own user; the model never sees it. `background`: the client does not wait
    for the answer. `store_answer`: the answer can be asked for later, as `response_id`.
    `service_tier` is empty where neither client nor route names one. `nbytes` is the size of the
    body and of all that the body refers to.
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
    directives: Directives = Directives()
    marker_problems: tuple[MarkerProblem, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    ttl_classes: dict[str, float] = {}
    usage_fields: tuple[UsageField, ...] = ()
    parameters: dict[str, Any] = {}
    options: WireOptions = WireOptions()
    background: bool = False
    store_answer: bool = True
    response_id: str = ""
    service_tier: str = ""
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
        """Answers to all prompts together; those to one prompt follow each other."""
        return self.num_prompts * self.num_choices

    def options_of(self, kind: type[OptionsT]) -> OptionsT:
        """The options of the wire format `kind`; its defaults where another format set them."""
        return self.options if isinstance(self.options, kind) else kind()
