"""A provider that the product does not know, served by two registrations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import orjson

from engine.types import CacheReport
from gateway.dialects.registry import DIALECTS
from gateway.wire.registry import WIRES
from policies.schema import Policy
from tests.fakes.backend import Script, ScriptedBackend, report_for
from tests.fakes.toy.dialect import DIALECT
from tests.fakes.toy.wire import TOY_WIRE
from tests.fakes.upstream import FakeUpstream, say_json
from tests.gateway.serving import OPENAI, Served, make_policy, serving

MODEL: Final = "smollm2-135m-instruct"
BODY: Final = {"model": MODEL, "question": "why?", "remember": True}
TENANTS: Final = "tenants: [{name: a, keys: [ka]}]"

toy_gateway = partial(
    serving, wires={**WIRES, "toy": TOY_WIRE}, dialects={**DIALECTS, "kimi": DIALECT}
)


async def post(
    served: Served, path: str, body: Any, **headers: str
) -> tuple[int, Any, Mapping[str, str]]:
    sent = OPENAI | {name.replace("_", "-"): text for name, text in headers.items()}
    async with served.http.post(path, data=orjson.dumps(body), headers=sent) as response:
        return response.status, orjson.loads(await response.read()), response.headers


def warm(request: Any) -> Script:
    return Script(report_for(request, 50, 37, warm=True))


async def test_its_route_is_answered_in_its_format() -> None:
    """Parser, dialect, encoder, id header and record are the toy's own."""
    async with toy_gateway(ScriptedBackend(warm)) as served:
        status, answer, headers = await post(
            served, "/toy/ask", BODY | {"shout": True}, x_request_id="r1"
        )
        usage = {"new": 13, "remembered": 30, "kept": 7, "said": 2}
        assert (status, answer) == (200, {"answer": "HELLO WORLD", "usage": usage})
        assert (headers["x-toy-id"], headers["pcg-request-id"]) == ("toy-r1", "r1")
        assert "request-id" not in headers
        (record,) = served.records
        assert (record.wire, record.route, record.tenant) == ("toy", "toy_ask", "default")
        assert record.bill is not None
        assert record.bill.usage.cache_read == 30


async def test_its_stream_and_its_count() -> None:
    """The stream is the toy's, and its counting route counts."""
    async with toy_gateway(ScriptedBackend()) as served:
        body = orjson.dumps(BODY | {"live": True})
        async with served.http.post("/toy/ask", data=body) as response:
            lines = (await response.text()).split("\n\n")
        assert [line for line in lines if "piece" in line] == [
            'data: {"piece":"Hello"}',
            'data: {"piece":" world"}',
        ]
        assert (await post(served, "/toy/count", BODY))[1] == {"tokens": 7}


async def test_its_errors_are_in_its_words() -> None:
    """A broken body, an effort that the model has not, an unknown path and a wrong method."""
    few = f"dialects: [{{match: {MODEL}, efforts: [low]}}]"
    async with toy_gateway(ScriptedBackend(), few) as served:
        broken = await post(served, "/toy/ask", {"model": MODEL}, x_request_id="r1")
        assert broken[:2] == (418, {"oops": "toy: missing", "at": "question", "id": "toy-r1"})
        refused = await post(served, "/toy/ask", BODY | {"effort": "high"})
        assert (refused[0], refused[1]["oops"], refused[1]["at"]) == (418, "not so high", "effort")
        status, unknown, headers = await post(served, "/toy/nothing", BODY)
        assert (status, "oops" in unknown, "x-toy-id" in headers) == (404, True, True)
        async with served.http.get("/toy/ask") as response:
            assert (response.status, "oops" in await response.json()) == (418, True)
        async with served.http.get("/elsewhere", headers={"x-toy-key": "k"}) as response:
            assert "oops" in await response.json()


async def test_its_key_is_in_its_own_header() -> None:
    """Its clients' key is read where they send it and nowhere else."""
    async with toy_gateway(ScriptedBackend(), TENANTS) as served:
        assert (await post(served, "/toy/ask", BODY, x_toy_key="ka"))[0] == 200
        assert [record.tenant for record in served.records] == ["a"]
        status, told, _ = await post(served, "/toy/ask", BODY, x_api_key="ka")
        assert (status, told["oops"]) == (418, "no API key: send x-toy-key")


async def test_models_are_listed_for_its_clients() -> None:
    """A route that several providers share follows the headers; the query reaches the format."""
    async with toy_gateway(ScriptedBackend()) as served:
        toys = {"x-toy-key": "k"}
        async with served.http.get("/v1/models?page=2", headers=toys) as response:
            assert await response.json() == {"toys": [MODEL], "page": "2"}
        async with served.http.get(f"/v1/models/{MODEL}", headers=toys) as response:
            assert await response.json() == {"toy": MODEL}
        async with served.http.get("/v1/models") as response:
            assert (await response.json())["object"] == "list"


def of_toys(policy: Policy) -> Policy:
    """The same, its upstreams speaking the toy's format."""
    backends = tuple(backend.model_copy(update={"api": "toy"}) for backend in policy.backends)
    return policy.model_copy(update={"backends": backends})


async def test_an_upstream_of_its_own() -> None:
    """The gateway's key goes in the toy's header, the client's goes nowhere, and the usage that
    comes back is read in the toy's words."""
    usage = {"new": 5, "remembered": 20, "kept": 3, "said": 4}
    upstream = FakeUpstream(say_json({"answer": "up", "usage": usage}))
    async with upstream.listening():
        text = (
            f"backends: [{{name: up, base_url: '{upstream.url}', api_key: up-key, "
            "models: [{match: 'toy-*'}]}]"
        )
        async with toy_gateway(ScriptedBackend(), of_toys(make_policy(text))) as served:
            asked = BODY | {"model": "toy-1"}
            status, answer, _ = await post(served, "/toy/ask", asked, x_toy_key="mine")
            assert (status, answer["usage"]) == (200, usage)
            assert (await post(served, "/toy/draw", {"model": "toy-1"}))[0] == 200
            elsewhere = await post(served, "/v1/chat/completions", asked)
            assert "serves toy-1 in Toy's format only" in elsewhere[1]["error"]["message"]
            (first, *_), (record, *_) = upstream.got, served.records
    assert first.target == "/toy/ask"
    assert first.headers["x-toy-key"] == "up-key"
    assert "authorization" not in first.headers
    assert record.bill is not None
    assert (record.bill.usage.cache_read, record.bill.usage.num_written) == (20, 3)


async def test_the_others_are_as_they_were() -> None:
    """Beside it the shipped formats answer as before, in their own rules."""
    cold = ScriptedBackend(Script(CacheReport(num_prompt=10)))
    async with toy_gateway(cold) as served:
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        status, answer, headers = await post(served, "/v1/chat/completions", chat)
        assert (status, answer["usage"]["prompt_tokens"]) == (200, 10)
        assert headers["x-request-id"] == headers["pcg-request-id"]
        assert [record.wire for record in served.records] == ["openai"]
