"""The number of functions that one request passes through: as a reader has to follow them."""

from __future__ import annotations

import pytest

from tests.fakes.backend import ScriptedBackend
from tests.fakes.calls import counting_calls
from tests.gateway.serving import ANTHROPIC, anthropic_body, serving

MOST = {False: 150, True: 150}
"""Whole and streamed."""


@pytest.mark.parametrize("stream", [False, True])
async def test_one_message(stream: bool) -> None:
    """Functions of `gateway`, from the socket to the record; not counted are comprehensions."""
    async with serving(ScriptedBackend()) as served:
        for _ in range(2):  # the first one also fills caches
            with counting_calls("gateway") as calls:
                async with served.http.post(
                    "/v1/messages", json=anthropic_body(stream=stream), headers=ANTHROPIC
                ) as response:
                    assert response.status == 200
                    await response.read()
    assert 50 < len(calls) <= MOST[stream], sorted(code.co_qualname for code in calls)
