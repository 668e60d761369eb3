"""One prompt under one plan: where its positions end, and the keys there. Knows no tree."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cache.tree.block import PromptKeys
from engine.prompt.rendered import RenderedPrompt
from engine.prompt.types import Position
from engine.types import CachePlan


@dataclass(frozen=True, slots=True, repr=False)
class PlannedPrompt:
    """A rendered prompt and the plan for it. `ids` are its packed token ids."""

    rendered: RenderedPrompt
    plan: CachePlan
    ids: bytes
    keys: PromptKeys

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.rendered.token_ids)

    @property
    def limit(self) -> int:
        """The last place a boundary may be: one token is always computed."""
        return len(self.rendered.token_ids) - 1

    def offset(self, position: Position) -> int:
        """Tokens up to the end of `position`, at most `limit`; 0 for a position the prompt does not
        have."""
        return min(self.rendered.offsets.get(position, 0), self.limit)

    def key(self, position: Position) -> bytes:
        """Key of an entry at `position` under the plan's salt of its level."""
        return self.keys.entry(self.offset(position), self.plan.salts.get(position.level, ""))
