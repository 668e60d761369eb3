"""One conversation through Anthropic's format and OpenAI's: one tree,
each bill in its own arithmetic, one price.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anthropic
import pytest

from tests.conformance.openai.asking import BREAK, EXPLICIT, MODEL, Asker, Served, filler, text

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

NANODOLLAR = Decimal("1e-9")
TTL = {"type": "ephemeral", "ttl": "5m"}


def by_messages(served: Served, words: str, *, key: str) -> tuple[Any, Decimal]:
    """Anthropic's answer to a question about `words`, marked, and what its prompt cost."""
    with anthropic.Anthropic(
        base_url=served.url, api_key=key, max_retries=0, timeout=280
    ) as claude:
        raw = claude.messages.with_raw_response.create(
            model=MODEL,
            max_tokens=1,
            system=[{"type": "text", "text": words, "cache_control": TTL}],
            messages=[{"role": "user", "content": "Which?"}],
        )
    return raw.parse().usage, Decimal(raw.headers["pcg-prompt-cost-usd"])


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("first", ["anthropic", "openai"])
def test_one_conversation_is_one_tree_and_one_price(served: Served, api: Any, first: str) -> None:
    """What one format wrote the other reads; the same breakpoint costs the same in both, cold and
    warm."""
    words, asker = filler(), Asker(served, api, False)
    turns = [
        {"role": "system", "content": [text(words, BREAK)]},
        {"role": "user", "content": "Which?"},
    ]

    def by_openai(key: str) -> tuple[Any, Decimal]:
        told = asker(*turns, key=key, prompt_cache_options=EXPLICIT)
        return told, Decimal(told.headers["pcg-prompt-cost-usd"])

    one, two = ("key-one", "key-two") if first == "anthropic" else ("key-two", "key-one")
    cold_claude, cold_claude_usd = by_messages(served, words, key=one)
    warm_gpt, warm_gpt_usd = by_openai(one)
    cold_gpt, cold_gpt_usd = by_openai(two)
    warm_claude, warm_claude_usd = by_messages(served, words, key=two)
    boundary = cold_claude.cache_creation_input_tokens
    assert boundary > 64
    assert warm_gpt.read == cold_gpt.written == warm_claude.cache_read_input_tokens == boundary
    assert warm_gpt.prompt == cold_gpt.prompt == boundary + cold_claude.input_tokens
    assert (cold_claude.input_tokens, warm_claude.input_tokens) == (
        warm_claude.input_tokens,
        cold_gpt.prompt - boundary,
    )
    assert abs(cold_claude_usd - cold_gpt_usd) < NANODOLLAR
    assert abs(warm_claude_usd - warm_gpt_usd) < NANODOLLAR
    assert warm_claude_usd < cold_claude_usd
