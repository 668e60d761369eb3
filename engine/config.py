"""The configuration of one engine.

Plain data that validates itself; nothing here reads files or the environment.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.prompt.template import TemplateClock
from engine.store.kind import TierKinds, TierSpec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, one model, one device.

    `model_path` is a prepared model folder (config.json, safetensors, tokenizer.json). `template`
    names a shipped template (`engine/prompt/templates/<name>.jinja`), or `model` for the model's
    own; `template_clock` is the day it tells. `kv_nbytes` is the size of the device pool; where the
    device has memory of its own, it is `kv_share` of that, unless that is 0. `exact` is promise 1's
    exact mode; `auto` turns it on where it costs at most 10 % (see docs/decisions).
    `max_mixed_tokens` is the share of prefills in a step in which something decodes; 0 is a quarter
    of `max_step_tokens`. Pinned entries may take `pin_nbytes` of the largest tier.
    `speculation` guesses tokens from earlier text and verifies them. `root_secret` keys every block
    of every tenant: the secret and the prompt are enough to compute keys.

    `tiers` are those below the device, in the order to read them. `encrypt` is for objects that
    leave memory. `force_store` sends every block to the tiers at once, for tests and measurements.
    """

    model: str
    model_path: str
    root_secret: bytes
    dtype: str = "bfloat16"
    device: str = "auto"
    context: int = 8192
    template: str = "auto"
    template_clock: TemplateClock = "frozen"
    exact: Literal["auto", "on", "off"] = "auto"
    runner: Literal["auto", "native", "lean", "generic"] = "auto"
    kv_nbytes: int = 2 * 1024**3
    kv_share: float = 0.0
    block_size: int = 16
    max_sequences: int = 32
    max_step_tokens: int = 512
    max_mixed_tokens: int = 0
    speculation: Literal["auto", "off"] = "auto"
    max_queue: int = 256
    num_threads: int = 0
    eviction: Literal["lru", "lfu", "cost"] = "lru"
    pin_nbytes: int = 0
    tiers: tuple[TierSpec, ...] = ()
    encrypt: bool = False
    force_store: bool = False

    @property
    def mixed_tokens(self) -> int:
        """Tokens that prefills get of a step in which something decodes."""
        return min(
            self.max_mixed_tokens or max(self.max_step_tokens // 4, self.block_size),
            self.max_step_tokens,
        )

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.context < 1 or self.max_sequences < 1 or self.max_queue < 1:
            raise ValueError("block_size, context, max_sequences and max_queue must be at least 1")
        if not 0.0 <= self.kv_share <= 1.0:
            raise ValueError("kv_share must be between 0 and 1")
        if self.max_step_tokens < self.block_size:
            raise ValueError(f"max_step_tokens must be at least block_size ({self.block_size})")
        if len(self.root_secret) < 16:
            raise ValueError("root_secret must have at least 16 bytes")


def decode_config(data: bytes, kinds: TierKinds) -> EngineConfig:
    """A configuration from JSON, as `msgspec.json.encode` makes it. Raises `msgspec.MsgspecError`,
    also for a tier whose kind is not in `kinds`."""

    def read_tier(type_: type[Any], value: Any) -> TierSpec:
        kind = kinds.get(value.get("type"))
        if kind is None:
            raise ValueError(f"no kind of tier is called {value.get('type')!r}")
        spec: TierSpec = msgspec.convert(value, kind.spec)
        return spec

    return msgspec.json.decode(data, type=EngineConfig, dec_hook=read_tier)
