"""Tokens that a self-hosted engine computed and may keep: input, for nobody promised them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.upstream.reported import ReportedBill
from tests.fakes.backend import ScriptedBackend
from tests.fakes.upstream import FakeUpstream, say_json
from tests.gateway.serving import serving

CHAT: dict[str, Any] = {
    "prompt_tokens": 2679,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 2560},
}
RESPONSE: dict[str, Any] = {
    "input_tokens": 2679,
    "output_tokens": 8,
    "input_tokens_details": {"cached_tokens": 64, "created_cache_tokens": 2560},
}
MESSAGE: dict[str, Any] = {
    "input_tokens": 119,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 2560,
    "output_tokens": 8,
}
CLASSED = MESSAGE | {
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 2560}
}
PAID: dict[str, Any] = {
    "prompt_tokens": 2679,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 2560},
}
ENGINE = "Qwen/Qwen3-32B"
NO_WRITES = "dialects: [{match: 'claude-*', preset: anthropic, bills_writes: false}]"


async def bill_of(
    path: str, model: str, usage: dict[str, Any], backend: str = "", policy: str = ""
) -> ReportedBill:
    api = "anthropic" if path == "/v1/messages" else "openai"
    async with FakeUpstream(say_json({"usage": usage})).listening() as upstream:
        backends = f"models: []\nbackends: [{{api: {api}, base_url: '{upstream.url}'{backend}}}]\n"
        async with serving(ScriptedBackend(), backends + policy) as served:
            marked = [
                {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
            ]
            body = {
                "model": model,
                "max_tokens": 5,
                "input": "Hi",
                "messages": [{"role": "user", "content": marked}],
            }
            async with served.http.post(path, data=orjson.dumps(body)) as response:
                assert response.status == 200
            bill = served.records[-1].bill
            assert isinstance(bill, ReportedBill)
            return bill


@pytest.mark.parametrize(
    ("path", "model", "usage", "read", "policy"),
    [
        ("/v1/chat/completions", ENGINE, CHAT, 0, ""),
        ("/v1/chat/completions", "gpt-5.6", CHAT, 0, ""),
        ("/v1/responses", ENGINE, RESPONSE, 64, ""),
        ("/v1/messages", ENGINE, MESSAGE, 0, ""),
        ("/v1/messages", "claude-sonnet-5", MESSAGE, 0, NO_WRITES),
        ("/v1/messages", "claude-sonnet-5", CLASSED, 0, NO_WRITES),
    ],
)
async def test_blocks_of_an_engine_are_input(
    path: str, model: str, usage: dict[str, Any], read: int, policy: str
) -> None:
    """Whatever TTL the client asked for, and without a note: no price was estimated."""
    bill = await bill_of(path, model, usage, policy=policy)
    assert (bill.usage.cache_read, bill.usage.cache_write) == (read, ())
    assert (bill.usage.input, bill.notes) == (2679 - read, ())
    assert bill.charge.cache_write == 0


@pytest.mark.parametrize(
    ("path", "model", "usage", "backend"),
    [
        ("/v1/messages", "claude-sonnet-5", MESSAGE, ""),
        ("/v1/messages", ENGINE, CLASSED, ""),
        ("/v1/messages", "somebodys/model", MESSAGE, ", preset: anthropic"),
        ("/v1/chat/completions", ENGINE, PAID, ""),
    ],
)
async def test_writes_of_a_provider_are_writes(
    path: str, model: str, usage: dict[str, Any], backend: str
) -> None:
    """A provider's model, a TTL class, a preset, or the field of those who charge for it."""
    bill = await bill_of(path, model, usage, backend)
    assert (bill.usage.input, bill.usage.num_written) == (119, 2560)
    assert bill.charge.cache_write > 0
