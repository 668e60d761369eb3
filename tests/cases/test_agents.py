"""The shapes real coding agents send: a six-step tool loop whose marker moves every turn,
and all that a client adds.
"""

from __future__ import annotations

from typing import Any

import orjson

from tests.fakes.engine_backend import EngineBackend
from tests.gateway.serving import serving

BETAS = (
    "claude-code-20250219,context-1m-2025-08-07,interleaved-thinking-2025-05-14,thinking-token-count-2026-05-13,"
    "context-management-2025-06-27,prompt-caching-scope-2026-01-05,mid-conversation-system-2026-04-07,effort-2025-11-24"
)
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETAS,
    "x-api-key": "dummy",
    "content-type": "application/json",
    "x-claude-code-session-id": "3f1c",
}
CC = {"type": "ephemeral"}


def words(num_bytes: int, seed: str) -> str:
    return (" ".join(f"{seed}{i}" for i in range(num_bytes)))[:num_bytes]


def tool(name: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    }
    return {"name": name, "description": words(300, name), "input_schema": schema}


def body(messages: list[dict[str, Any]], nonce: str) -> dict[str, Any]:
    """One request of the loop: markers on two system blocks and on the last block of the last
    message."""
    *earlier, last = messages
    content = [*last["content"][:-1], last["content"][-1] | {"cache_control": CC}]
    return {
        "model": "claude-opus-5",
        "max_tokens": 64_000,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "user_x_account__session_y"},
        "tools": [tool(name) for name in ("Read", "Edit", "Bash", "Grep", "Write", "Task")],
        "system": [
            {
                "type": "text",
                "text": f"x-anthropic-billing-header: cc_version=2.1.197.{nonce}; "
                "cc_entrypoint=sdk-cli;",
            },
            {"type": "text", "text": words(62, "who"), "cache_control": CC},
            {"type": "text", "text": words(900, "how"), "cache_control": CC},
        ],
        "messages": [*earlier, {"role": last["role"], "content": content}],
    }


def step(i: int) -> list[dict[str, Any]]:
    """The agent reads a file and is shown it."""
    call = {
        "type": "tool_use",
        "id": f"toolu_{i}",
        "name": "Read",
        "input": {"path": f"/src/{i}.py"},
    }
    result = {"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": words(40, f"line{i}")}
    return [
        {"role": "assistant", "content": [{"type": "text", "text": f"Reading {i}."}, call]},
        {"role": "user", "content": [result]},
    ]


async def test_a_six_step_loop_reads_what_it_has_sent() -> None:
    """From the second step on at least 95 % of each prompt are read, though the session's nonce
    changes every time."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Fix the bug."}]},
        {"role": "system", "content": words(300, "reminder")},
        {"role": "assistant", "content": [{"type": "text", "text": "I will."}]},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ]
    shares = []
    async with EngineBackend(context=7000) as backend, serving(backend) as served:
        backend.runner.script = lambda sequence: b"Done."
        backend.runner.script_end = 257
        async with served.http.head("/") as response:
            assert response.status == 200
        for i in range(6):
            sent = orjson.dumps(body(messages, f"a{i}c"))
            async with served.http.post(
                "/v1/messages?beta=true", data=sent, headers=HEADERS
            ) as response:
                assert response.status == 200, await response.text()
                usage = orjson.loads((await response.read()).split(b"data: ")[1].split(b"\n")[0])[
                    "message"
                ]["usage"]
            read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
            shares.append(read / (read + written + usage["input_tokens"]))
            served.clock.advance(5)
            messages += step(i)
    assert shares[0] == 0
    assert min(shares[1:]) >= 0.95, shares
