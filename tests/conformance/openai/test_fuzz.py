"""Whatever is sent, the answer is a completion, a stream that ends,
or an error in the API's envelope: never anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import openai
import orjson
import pytest
from pydantic import BaseModel

from tests.conformance.openai.asking import Served
from tests.fakes import openai_bodies
from tests.fakes.backend import ScriptedBackend
from tests.fakes.mutants import mutants
from tests.gateway.serving import serving

CHAT, RESPONSES, LEGACY = "/v1/chat/completions", "/v1/responses", "/v1/completions"
BODIES: Final[dict[str, dict[str, Any]]] = {
    CHAT: openai_bodies.CHAT,
    RESPONSES: openai_bodies.RESPONSES,
    LEGACY: openai_bodies.COMPLETIONS,
}
LIMITS: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"max_tokens": 3},
    RESPONSES: {"max_output_tokens": 3},
    LEGACY: {"max_tokens": 3},
}
WHOLE: Final[dict[str, type[BaseModel]]] = {
    CHAT: openai.types.chat.ChatCompletion,
    RESPONSES: openai.types.responses.Response,
    LEGACY: openai.types.Completion,
}
LAST: Final = (b"event: response.completed\n", b"event: response.incomplete\n")


async def check(http: aiohttp.ClientSession, path: str, body: bytes) -> int:
    """Send one body and look at what comes back; the status."""
    headers = {"content-type": "application/json", "authorization": "Bearer key-one"}
    async with http.post(path, data=body, headers=headers) as response:
        answer = await response.read()
    if response.status == 200 and response.content_type == "text/event-stream":
        assert answer.rstrip().endswith(b"data: [DONE]") or answer.rstrip().split(b"\n\n")[
            -1
        ].startswith(LAST), body
        assert b'"error":{' not in answer, body
    elif response.status == 200:
        WHOLE[path].model_validate_json(answer)
    else:
        assert 400 <= response.status < 500, body
        told = orjson.loads(answer)
        assert set(told) == {"error"}
        assert set(told["error"]) == {"message", "type", "param", "code"}
        assert told["error"]["type"] == "invalid_request_error"
        assert isinstance(told["error"]["message"], str)
    return response.status


async def check_all(
    http: aiohttp.ClientSession, path: str, seed: int, count: int, kept: Mapping[str, Any]
) -> Counter[int]:
    return Counter(
        [await check(http, path, body) for body in mutants(seed, count, BODIES[path], kept)]
    )


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (1, 170),
        pytest.param(
            2, 6_700, marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
        ),
    ],
)
@pytest.mark.parametrize("path", BODIES)
async def test_mutated_bodies(path: str, seed: int, count: int) -> None:
    """Over a scripted backend: some are answered, many are refused, none breaks anything."""
    async with serving(ScriptedBackend()) as served:
        statuses = await check_all(served.http, path, seed, count, {})
    assert statuses[200] > count / 20
    assert statuses[400] > count / 5


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("path", BODIES)
async def test_mutated_bodies_on_the_real_engine(served: Served, path: str) -> None:
    """What is accepted can be rendered and answered."""
    async with aiohttp.ClientSession(served.url) as http:
        statuses = await check_all(http, path, 3, 70, LIMITS[path])
    assert statuses[200] > 70 / 12
