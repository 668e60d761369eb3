"""One look at the device for one prompt. Data; knows no pages and no tiers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cache.tree.prompt import PlannedPrompt
from engine.cache.tree.radix import Match
from engine.cache.tree.tenant import TenantCache
from engine.types import PlannedEntry


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lookup:
    """A prompt, packed and matched; made by `PrefixCache.lookup` when its request arrives.

    `match` is the longest live prefix that the plan may read, when the tree had `version`.
    `planned` are the entries that may come to exist. At most `max_kept` tokens of prompt and answer
    may stay cached. The TTLs count from `started_at_s`.
    """

    tenant: TenantCache
    prompt: PlannedPrompt
    started_at_s: float
    planned: tuple[PlannedEntry, ...]
    max_kept: int
    match: Match
    version: int

    @property
    def num_found(self) -> int:
        """Tokens of the prompt that are on the device."""
        return self.match.num_tokens

    @property
    def num_kept(self) -> int:
        """Tokens of the prompt that may be found later."""
        return min(self.max_kept, self.prompt.num_prompt)
