"""Large bodies are read beside the event loop, and refused for what they would become,
in each format's own words.
"""

from __future__ import annotations

import asyncio
import gc
import threading

import orjson
import pytest

from gateway.offload import SMALL_NBYTES, OffloadThread
from gateway.operate.loop_lag import watching_the_loop
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import ANTHROPIC, OPENAI, anthropic_body, openai_body, serving

ROUTES = [
    ("/v1/messages", ANTHROPIC, anthropic_body()),
    ("/v1/messages/count_tokens", ANTHROPIC, anthropic_body()),
    ("/v1/chat/completions", OPENAI, openai_body()),
    ("/v1/completions", OPENAI, {"model": "gpt-5.6", "prompt": "Hi"}),
    ("/v1/responses", OPENAI, {"model": "gpt-5.6", "input": "Hi"}),
    ("/v1/responses/compact", OPENAI, {"model": "gpt-5.6", "input": "Hi"}),
    ("/v1/responses/input_tokens", OPENAI, {"model": "gpt-5.6", "input": "Hi"}),
]


async def test_large_work_leaves_the_loop_free() -> None:
    """Small work is done at once where it is; large work waits for what only the loop can do
    meanwhile."""
    aside, begun, done = OffloadThread(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> tuple[str, bool]:
        loop.call_soon_threadsafe(begun.set)
        assert done.wait(60)
        return threading.current_thread().name, gc.isenabled()

    running = asyncio.create_task(aside.run(SMALL_NBYTES + 1, work))
    await begun.wait()
    assert await aside.run(SMALL_NBYTES, threading.current_thread) is threading.current_thread()
    done.set()
    name, collects = await running
    assert name.startswith("aside")
    assert not collects
    assert gc.isenabled()


async def test_what_fails_beside_the_loop_is_told_to_its_caller() -> None:
    """And the collector goes on."""

    def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await OffloadThread().run(SMALL_NBYTES + 1, fail)
    assert gc.isenabled()


async def test_a_late_loop_is_noticed() -> None:
    """Whoever keeps the loop from others is seen by how late it wakes up."""
    late = asyncio.Queue[float]()
    async with watching_the_loop(late.put_nowait, every_s=0.01):
        await late.get()
        threading.Event().wait(0.2)
        seen = await late.get()
    assert seen >= 0.15


@pytest.mark.parametrize(("path", "headers", "body"), ROUTES, ids=[path for path, *_ in ROUTES])
async def test_bounds_hold_on_every_route(
    path: str, headers: dict[str, str], body: dict[str, object]
) -> None:
    """A body of as many values as may be is answered, one more is a 413, and one too deep a 400;
    compressed or not, large or small, each in the words of the format."""
    async with serving(ScriptedBackend(), "server: {max_values: 9000}") as served:

        async def post(data: bytes) -> tuple[int, str]:
            async with served.http.post(path, data=data, headers=headers) as response:
                told = orjson.loads(await response.read())
                return response.status, told["error"]["message"] if response.status >= 400 else ""

        num = 9000 - sum(map(num_values, body.values())) - 2
        for filling in (0, "long enough to be read beside the loop"):
            assert await post(orjson.dumps(body | {"ignored": [filling] * num})) == (200, "")
            status, message = await post(orjson.dumps(body | {"ignored": [filling] * (num + 1)}))
            assert (status, "more than 9000 JSON values" in message) == (413, True)
        status, message = await post(b'{"ignored": ' + b"[" * 200 + b"]" * 200 + b"}")
        assert (status, "nested more than 128 levels" in message) == (400, True)


def num_values(value: object) -> int:
    """Of a body without empty objects and arrays."""
    members = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    return 1 + sum(map(num_values, members))
