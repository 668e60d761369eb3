"""A document of 22 tokens and questions about it:
what the worked examples of the prefix cache ask.
"""

from __future__ import annotations

from engine.prompt.types import Position
from engine.types import CachePlan, CacheReport
from tests.fakes.rig import SYSTEM, Rig, turn

DOCUMENT = list(range(100, 122))
"""22 tokens: five blocks of four, and two tokens in the sixth."""
UNMARKED = CachePlan(unmarked_ttl_s=300.0)
ANY = CachePlan(any_prefix=True)
NO_TAIL = {"unmarked_ttl_s": 0.0}


def with_question(*question: int) -> tuple[list[int], dict[Position, int]]:
    """The document, the system prompt, and a question after it; and where each ends."""
    return [*DOCUMENT, *question], {SYSTEM: 22, turn(0): 22 + len(question)}


def ask(rig: Rig, question: list[int], plan: CachePlan, tenant: str = "default") -> CacheReport:
    """Run a question about the document from start to end."""
    tokens, offsets = with_question(*question)
    return rig.run(tokens, plan, offsets, tenant=tenant)
