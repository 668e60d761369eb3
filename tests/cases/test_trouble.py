"""What users ran into when something broke: damaged KV, clients that leave,
streams that fall silent.

The numbers are those of a collection of public bug reports.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from engine.store.base import Item
from engine.store.memory import MemoryStore
from tests.fakes.backend import Script, ScriptedBackend
from tests.fakes.reports import CC, MODEL, opened, say, text, words
from tests.fakes.rig import SYSTEM, Rig, marked, turn
from tests.gateway.serving import ANTHROPIC, serving


def test_case_35_damaged_kv_is_recomputed() -> None:
    """A flipped byte in a stored block is a miss that is counted and healed, never an answer from
    garbage."""
    store = MemoryStore(1 << 20)
    rig = Rig(store=store, force_store=True)
    tokens, offsets = [*range(100, 122), 1, 2], {SYSTEM: 22, turn(0): 24}
    rig.run(tokens, marked(SYSTEM), offsets)
    for key, found in list(store.scan()):
        payload = store.get_many([key], rig.now_s)[0]
        assert payload is not None
        store.put_many([Item(key, payload[:-1] + bytes([payload[-1] ^ 1]), found.expires_at_s)])
    report = rig.run(tokens, marked(SYSTEM), offsets)
    assert (report.skipped, report.hit) == (0, None)
    assert rig.cache.stats().counters.num_broken_corrupt_tokens > 0
    assert rig.run(tokens, marked(SYSTEM), offsets).hit is not None


async def test_case_36_a_client_that_leaves_mid_stream() -> None:
    """What it used is recorded, what was prefilled is read by the next turn, and nothing is
    computed for it any more."""
    body = {
        "model": MODEL,
        "max_tokens": 4000,
        "stream": True,
        "system": [text(words(200), CC)],
        "messages": [say("user", "hi")],
    }
    async with opened() as desk:
        async with desk.served.http.post("/v1/messages", json=body, headers=ANTHROPIC) as response:
            await response.content.readuntil(b"text_delta")
        async with asyncio.timeout(10):
            while not desk.served.records:
                await asyncio.sleep(0)
        record = desk.served.records[-1]
        assert record.outcome == "cancelled"
        assert record.bill is not None
        assert record.bill.usage.num_written > 200
        assert 1 <= record.bill.usage.output < 4000
        assert (await desk.ask(system=body["system"])).read == record.bill.usage.num_written


async def test_case_37_an_idle_stream_is_kept_open() -> None:
    """Before the first token bytes go out at intervals, the SDK's order stays intact, and an early
    error keeps its status."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_started=gate))
    policy = "server: {sse: {keepalive: 20ms, early_headers_after: 20ms}}"
    body = {"model": MODEL, "max_tokens": 1, "stream": True, "messages": [say("user", "hi")]}
    async with (
        serving(backend, policy) as served,
        served.http.post("/v1/messages", json=body, headers=ANTHROPIC) as response,
    ):
        for _ in range(2):
            assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        gate.set()
        rest = (await response.read()).decode()
    names = [
        line[7:]
        for line in rest.splitlines()
        if line.startswith("event: ") and line != "event: ping"
    ]
    assert (names[0], names[-1]) == ("message_start", "message_stop")


def test_every_case_of_this_dialect_is_here() -> None:
    """One test for each report that concerns Anthropic's API or the local engine."""
    wanted = {*range(1, 14), *range(15, 22), *range(24, 33), 35, 36, 37, 41, 43, 47}
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    named = {
        int(number)
        for text in texts
        for number in re.findall(r"^(?:async )?def test_case_(\d+)_", text, re.MULTILINE)
    }
    assert wanted <= named
