"""Whatever is sent, the answer is a Message, a stream that ends, or an error in the API's envelope:
never anything else."""

from __future__ import annotations

from collections import Counter

import aiohttp
import anthropic
import orjson
import pytest

from tests.fakes.backend import ScriptedBackend
from tests.fakes.clocked import Clocked
from tests.fakes.mutants import mutants
from tests.gateway.serving import serving

ERRORS = {"invalid_request_error", "not_found_error", "request_too_large"}


async def check(http: aiohttp.ClientSession, body: bytes) -> int:
    """Send one body and look at what comes back; the status."""
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": "key-one",
    }
    async with http.post("/v1/messages", data=body, headers=headers) as response:
        answer = await response.read()
    if response.status == 200 and response.content_type == "text/event-stream":
        assert answer.startswith(b"event: message_start\n")
        assert answer.rstrip().endswith(b'data: {"type":"message_stop"}'), body
    elif response.status == 200:
        anthropic.types.Message.model_validate_json(answer)
    else:
        assert 400 <= response.status < 500, body
        told = orjson.loads(answer)
        assert set(told) == {"type", "error", "request_id"}
        assert told["type"] == "error"
        assert told["error"]["type"] in ERRORS
        assert set(told["error"]) == {"type", "message"}
        assert isinstance(told["error"]["message"], str)
    return response.status


async def check_all(http: aiohttp.ClientSession, seed: int, count: int) -> Counter[int]:
    return Counter([await check(http, body) for body in mutants(seed, count)])


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (1, 500),
        pytest.param(
            2, 20_000, marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
        ),
    ],
)
async def test_mutated_bodies(seed: int, count: int) -> None:
    """Over a scripted backend: some are answered, most are refused, none breaks anything."""
    async with serving(ScriptedBackend()) as served:
        statuses = await check_all(served.http, seed, count)
    assert statuses[200] > count / 20
    assert statuses[400] > count / 4


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
async def test_mutated_bodies_on_the_real_engine(served: Clocked) -> None:
    """What is accepted can be rendered and answered."""
    async with aiohttp.ClientSession(served.url) as http:
        statuses = await check_all(http, 3, 200)
    assert statuses[200] > 10
