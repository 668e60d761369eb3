"""Types of the engine's interface: the cache plan that it takes and the report that it returns.

The types of the prompt are in `engine.prompt.types`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from engine.prompt.types import Level, Position

FinishReason: TypeAlias = Literal["stop", "stop_sequence", "length", "context", "cancelled"]
MissCause: TypeAlias = Literal[
    "cold",
    "tools_changed",
    "system_changed",
    "messages_changed",
    "parameters_changed",
    "template_clock",
    "expired",
    "evicted",
    "below_min",
    "not_marked",
    "no_cache",
    "no_store",
    "broken_promise",
]


class PlannedEntry(msgspec.Struct, frozen=True):
    """An entry the request wants to exist afterwards: cached up to `position` for `ttl_s` seconds.

    Where it is read instead of written, it takes the longer class of the two, but with
    `upgrade=False` keeps its own. With `max_age_s` it ends so many seconds after it was written,
    whatever its class and however often it is read.
    """

    position: Position
    ttl_s: float
    refresh_on_read: bool = True
    upgrade: bool = True
    max_age_s: float | None = None


class CachePlan(msgspec.Struct, frozen=True):
    """A provider's caching rules applied to one request, before anything is tokenized.

    `readable` lists positions in the order to try: the first with a live entry is the hit.
    `writable` is in wire order. `salts` holds, per level, the parameters that invalidate that level
    without being rendered; an entry is found only under the salt it was written with. With
    `any_prefix` every live token prefix counts as readable, entry or not (automatic caching).
    `min_tokens` is the smallest boundary that may be written or read. KV that no entry covers is
    kept for `unmarked_ttl_s` after its last use (0: not kept). `read=False` neither matches nor
    reuses anything; `store=False` keeps nothing. With `max_read_age_s` only entries written in the
    last so many seconds are read, and no prefix that is not an entry.

    With `single_flight` a request waits, for at most `max_wait_s` of the engine's time, while
    another one computes what both begin with. What it was spared so counts as read, or with `write`
    as if it had not been found: true counts are in the report either way.
    """

    readable: tuple[Position, ...] = ()
    writable: tuple[PlannedEntry, ...] = ()
    min_tokens: int = 0
    salts: dict[Level, str] = {}
    any_prefix: bool = False
    unmarked_ttl_s: float = 300.0
    read: bool = True
    store: bool = True
    max_read_age_s: float | None = None
    single_flight: Literal["off", "read", "write"] = "read"
    max_wait_s: float = 60.0


class Boundary(msgspec.Struct, frozen=True):
    """One planned entry as the engine found it: `offset` tokens from the start, already there or
    new."""

    position: Position
    offset: int
    ttl_s: float
    existed: bool


class Hit(msgspec.Struct, frozen=True):
    """The entry that was read: the prompt's first `offset` tokens. `ttl_left_s` counts from the
    request's start, refreshed."""

    position: Position
    offset: int
    ttl_left_s: float


class Miss(msgspec.Struct, frozen=True):
    """Why the plan read less than it could have: the first position that differs and the token
    where it does."""

    cause: MissCause
    position: Position | None = None
    token: int | None = None


class CacheReport(msgspec.Struct, frozen=True):
    """The use of the cache by one request.

    Offsets are in tokens and never sums: the arithmetic of billing lives in the dialects.

    `skipped` tokens were not prefilled; `skipped <= num_prompt - 1`. `hit.offset <= skipped`.
    `boundaries` are in wire order with offsets that never decrease, at least `min_tokens` and at
    most `num_prompt - 1`. `tiers` says which tier the skipped tokens came from and adds up to
    `skipped`. `shared` of the skipped tokens were computed by another request while this one waited
    for them.
    """

    num_prompt: int
    skipped: int = 0
    hit: Hit | None = None
    boundaries: tuple[Boundary, ...] = ()
    tiers: dict[str, int] = {}
    miss: Miss | None = None
    broken_tokens: int = 0
    shared: int = 0


PinOutcome: TypeAlias = Literal["done", "unknown", "absent", "over_budget"]
"""The outcome of a pin or unpin.

`absent`: the entry's KV is not on the device now. `unknown`: no live entry has the key.
"""


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether the answer may, must or must not call tools, and which of those offered: all where
    there are no `names`.

    One name and `required` mean exactly one call. Tools that may not be called stay in the prompt,
    which is cached.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class OutputFormat(msgspec.Struct, frozen=True):
    """A language the answer's text must be in.

    `definition` is a JSON Schema as JSON text, a regular expression or a Lark grammar; empty for
    `json_object`.
    """

    kind: Literal["json_schema", "json_object", "regex", "lark"]
    definition: str = ""


class TokenLogprob(msgspec.Struct, frozen=True):
    """The natural logarithm of a token's probability. `text` is the token's bytes, maybe half a
    character."""

    token_id: int
    logprob: float
    text: bytes = b""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A token that was chosen, and the most probable ones in its place, best first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


class Sampling(msgspec.Struct, frozen=True):
    """The parameters by which tokens are chosen.

    `temperature == 0` is greedy. `seed` makes a request reproducible, alone or in a batch.

    `num_logprobs` asks for the probability of every token and of that many others; None asks for
    nothing.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    tool_choice: ToolChoice = ToolChoice()
    output_format: OutputFormat | None = None
