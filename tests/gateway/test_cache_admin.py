"""The operators' routes about what is stored: who may ask, what is answered,
and errors by RFC 9457.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import EngineConfig
from engine.messages import Pinned
from engine.store.disk.kind import SsdSpec
from engine.types import PinOutcome
from gateway.operate.cache_admin import operator_key
from gateway.operate.cache_pins import Refusal, set_pinned
from gateway.operate.inventory import EntryLine, tenant_hash
from gateway.operate.tier_maintenance import open_inventory
from tests.fakes.backend import ScriptedBackend
from tests.gateway.serving import Served, serving
from tests.gateway.stocked import CAP, SECRET, fill, flip, objects, path_of

EXPIRES_AT_S = 1_700_000_060.0
TENANTS = "tenants: [{name: a, keys: [key-of-a]}, {name: b, keys: [key-of-b]}]"
ROUTES = [
    ("GET", "stat"),
    ("GET", "entries"),
    ("POST", "flush"),
    ("POST", "pin"),
    ("POST", "unpin"),
    ("POST", "verify"),
]
SAME = objects("a", EXPIRES_AT_S)[-1].key[8:].hex()
"""The key of the one entry that each tenant has, the same for all of them."""
OPERATOR = {"x-api-key": operator_key(SECRET)}


class FlushableBackend(ScriptedBackend):
    """Remembers what it was told to forget and to pin."""

    def __init__(self) -> None:
        super().__init__()
        self.counters = {"cache_hits_total": 5.0}
        self.flushed: list[str | None] = []
        self.pins: list[tuple[bytes, bool]] = []
        self.outcome: PinOutcome = "done"

    async def flush(self, tenant: str | None) -> int:
        self.flushed.append(tenant)
        return 7

    async def pin(self, key: bytes, *, pinned: bool) -> Pinned:
        self.pins.append((key, pinned))
        return Pinned("1", self.outcome, 1000, 4000)


@asynccontextmanager
async def stocked(
    folder: Path, policy: str = "", *, tenants: str = "ab"
) -> AsyncIterator[tuple[Served, FlushableBackend]]:
    """A gateway whose SSD tier holds one prompt of each tenant."""
    fill(folder, [item for tenant in tenants for item in objects(tenant, EXPIRES_AT_S)])
    backend = FlushableBackend()
    engine = EngineConfig(
        model="m", model_path="", root_secret=SECRET, tiers=(SsdSpec(str(folder), CAP),)
    )
    with open_inventory([engine]) as inventory:
        async with serving(backend, policy, inventory=inventory, root_secret=SECRET) as served:
            yield served, backend


async def ask(
    served: Served, method: str, name: str, *, key: str | None = None, **more: Any
) -> tuple[int, Any, str]:
    """Status, JSON (the last line of several) and media type of an answer."""
    headers = {"x-api-key": key} if key else {}
    async with served.http.request(
        method, f"/admin/cache/{name}", headers=headers, **more
    ) as response:
        lines = (await response.read()).splitlines()
        return response.status, msgspec.json.decode(lines[-1]), response.content_type


async def test_on_loopback_without_tenants_everything_is_told(tmp_path: Path) -> None:
    """Sizes by tenant, the engines' numbers, entries with their time left, and no text."""
    async with stocked(tmp_path) as (served, _):
        status, stat, _ = await ask(served, "GET", "stat")
        assert status == 200
        (place,) = stat["contents"]
        assert set(place["tenants"]) == {tenant_hash(SECRET, "a"), tenant_hash(SECRET, "b")}
        (engine,) = stat["engines"].values()
        assert engine["counters"] == {"cache_hits_total": 5.0}
        status, told, _ = await ask(served, "GET", "entries")
        assert (status, told["truncated"]) == (200, False)
        assert [
            (line["position"], line["offset"], line["ttl_left_s"]) for line in told["entries"]
        ] == [("system/0", 700, 60)] * 2


async def test_everything_stored_is_verified(tmp_path: Path) -> None:
    """Progress comes as lines of JSON, the outcome last."""
    async with stocked(tmp_path) as (served, _):
        key = objects("a", EXPIRES_AT_S)[0].key
        flip(path_of(tmp_path, key), -1)
        status, last, kind = await ask(served, "POST", "verify")
    assert (status, kind) == (200, "application/x-ndjson")
    assert last["done_nbytes"] == last["total_nbytes"] > 0
    assert last["verified"]["num_whole"] == 5
    assert [damage["key"] for damage in last["verified"]["damaged"]] == [key.hex()]


async def test_a_key_sees_and_forgets_its_own_tenant(tmp_path: Path) -> None:
    """Where there are tenants: of everyone else not even the hash is told."""
    async with stocked(tmp_path, TENANTS) as (served, backend):
        _, stat, _ = await ask(served, "GET", "stat", key="key-of-a")
        assert [set(place["tenants"]) for place in stat["contents"]] == [{tenant_hash(SECRET, "a")}]
        _, told, _ = await ask(served, "GET", "entries", key="key-of-b")
        assert {line["tenant"] for line in told["entries"]} == {tenant_hash(SECRET, "b")}
        _, last, _ = await ask(served, "POST", "verify", key="key-of-a")
        assert last["verified"]["num_whole"] == 3
        assert (await ask(served, "POST", "flush", key="key-of-a"))[:2] == (200, {"num_blocks": 7})
        status, error, _ = await ask(served, "POST", "flush", key="key-of-a", json={"tenant": "b"})
        assert (status, error["title"]) == (403, "Forbidden")
        assert backend.flushed == ["a"]


async def test_the_operators_key_reaches_everyone(tmp_path: Path) -> None:
    """It follows from the secret file: whoever can read that needs no tenant's key."""
    async with stocked(tmp_path, TENANTS) as (served, backend):
        _, stat, _ = await ask(served, "GET", "stat", key=operator_key(SECRET))
        assert [len(place["tenants"]) for place in stat["contents"]] == [2]
        for body in ({}, {"tenant": "b"}):
            assert (await ask(served, "POST", "flush", key=operator_key(SECRET), json=body))[
                0
            ] == 200
        assert backend.flushed == [None, "b"]
        status, _, _ = await ask(
            served, "GET", "stat", key=operator_key(b"another secret of a gateway")
        )
        assert status == 401


@pytest.mark.parametrize(("method", "name"), ROUTES)
async def test_strangers_are_refused(method: str, name: str, tmp_path: Path) -> None:
    """No key, a wrong key, a web page: nothing is told and nothing is done."""
    async with stocked(tmp_path, TENANTS) as (served, backend):
        for key in (None, "key-of-c"):
            status, error, kind = await ask(served, method, name, key=key)
            assert (status, kind, error["status"]) == (401, "application/problem+json", 401)
        async with served.http.request(
            method, f"/admin/cache/{name}", headers=OPERATOR | {"Origin": "http://localhost:8080"}
        ) as response:
            assert response.status == 403
            assert response.content_type == "application/problem+json"
        assert backend.flushed == []
        assert backend.pins == []


@pytest.mark.parametrize(("verb", "pinned"), [("pin", True), ("unpin", False)])
async def test_an_entry_is_pinned_by_the_first_digits_of_its_key(
    verb: str, pinned: bool, tmp_path: Path
) -> None:
    """The engine gets the whole key, whatever the case of the digits. Only the operator pins: it
    takes from everyone."""
    stored = objects("b", EXPIRES_AT_S)[-1].key
    async with stocked(tmp_path, TENANTS, tenants="b") as (served, backend):
        _, told, _ = await ask(served, "GET", "entries", key="key-of-b")
        digits = told["entries"][0]["key"]
        assert digits == stored[8:].hex()
        body = {"key": digits[:8].upper()}
        wanted = {"key": digits, "used_nbytes": 1000, "budget_nbytes": 4000}
        assert (await ask(served, "POST", verb, key="key-of-b", json=body))[0] == 403
        assert backend.pins == []
        assert (await ask(served, "POST", verb, key=operator_key(SECRET), json=body))[:2] == (
            200,
            wanted,
        )
        assert backend.pins == [(stored, pinned)]


@pytest.mark.parametrize(
    ("body", "status", "title"),
    [
        ({"key": "0000"}, 404, "UnknownEntry"),
        ({"key": SAME[:8]}, 409, "AmbiguousKey"),
        ({"key": SAME[:3]}, 400, "InvalidRequest"),
        ({"key": "no digits"}, 400, "InvalidRequest"),
        ({}, 400, "InvalidRequest"),
    ],
)
async def test_no_entry_or_several_are_refused(
    body: dict[str, str], status: int, title: str, tmp_path: Path
) -> None:
    """Nothing is pinned by guess: the entries of both tenants have the same key here."""
    async with stocked(tmp_path) as (served, backend):
        told = await ask(served, "POST", "pin", json=body)
        assert (told[0], told[1]["title"], told[2]) == (status, title, "application/problem+json")
        assert backend.pins == []


@pytest.mark.parametrize(
    ("outcome", "title"),
    [("absent", "NotOnDevice"), ("unknown", "NotOnDevice"), ("over_budget", "OverBudget")],
)
async def test_what_the_engine_refuses_is_said(
    outcome: PinOutcome, title: str, tmp_path: Path
) -> None:
    """With what to do about it."""
    async with stocked(tmp_path, tenants="a") as (served, backend):
        backend.outcome = outcome
        status, error, _ = await ask(served, "POST", "pin", json={"key": SAME})
        assert (status, error["title"]) == (409, title)
        assert (
            "send a request that reads it" if title == "NotOnDevice" else "1000 of 4000 bytes"
        ) in error["detail"]


class Pinning:
    """An engine that answers every pin alike."""

    def __init__(self, outcome: PinOutcome) -> None:
        self.outcome = outcome

    async def pin(self, key: bytes, *, pinned: bool) -> Pinned:
        return Pinned("p", self.outcome, 10, 100)


@pytest.mark.parametrize(
    ("outcomes", "wanted"),
    [
        (("unknown", "done", "unknown"), (10, 100)),
        (("done", "done", "over_budget"), (20, 200)),
        (("unknown", "over_budget"), "OverBudget"),
        (("absent", "unknown"), "NotOnDevice"),
    ],
)
async def test_every_worker_that_has_an_entry_pins_it(
    outcomes: tuple[PinOutcome, ...], wanted: object
) -> None:
    """What is told is the sum over those that did; only where none did, why."""
    line = EntryLine("ssd", "00" * 8, "system/0", 9, 300.0, 200.0, 500, key="ab" * 8)
    told = await set_pinned(line, [Pinning(outcome) for outcome in outcomes], pinned=True)
    assert (
        told.title if isinstance(told, Refusal) else (told.used_nbytes, told.budget_nbytes)
    ) == wanted


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"tenant": 1}', b'{"tennant": "a"}'])
async def test_bad_bodies_are_refused(body: bytes, tmp_path: Path) -> None:
    """A mistyped key must not flush everyone."""
    async with stocked(tmp_path) as (served, backend):
        status, error, kind = await ask(served, "POST", "flush", data=body)
        assert (status, kind, error["title"]) == (400, "application/problem+json", "InvalidRequest")
        assert backend.flushed == []


async def test_a_body_may_come_in_pieces(tmp_path: Path) -> None:
    """Wherever a network cuts it; one that does not end within the limit is refused."""

    async def pieces(*texts: bytes) -> AsyncIterator[bytes]:
        for text in texts:
            yield text
            for _ in range(50):
                await asyncio.sleep(0)

    async with stocked(tmp_path) as (served, backend):
        assert (await ask(served, "POST", "flush", data=pieces(b'{"tenant"', b': "b', b'"}')))[
            0
        ] == 200
        status, error, _ = await ask(served, "POST", "flush", data=pieces(b"{", b" " * 4096))
        assert (status, "exceeds" in error["detail"]) == (413, True)
        assert backend.flushed == ["b"]


@pytest.mark.parametrize(
    ("method", "name", "wanted"),
    [("GET", "flush", 405), ("POST", "stat", 405), ("GET", "nothing", 404)],
)
async def test_what_is_not_there_is_no_providers_error(
    method: str, name: str, wanted: int, tmp_path: Path
) -> None:
    """Unknown paths and methods below `/admin` answer by RFC 9457, too."""
    async with stocked(tmp_path) as (served, _):
        status, error, kind = await ask(served, method, name)
        assert (status, kind, error["status"]) == (wanted, "application/problem+json", wanted)


async def test_without_tenants_only_loopback_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`server.allow_anonymous` opens the API to others, not these routes."""
    monkeypatch.setattr("aiohttp.web.BaseRequest.remote", "192.0.2.1")
    async with stocked(tmp_path) as (served, _):
        status, error, _ = await ask(served, "GET", "stat")
        assert (status, error["title"]) == (403, "Forbidden")
        assert (await ask(served, "GET", "stat", key=operator_key(SECRET)))[0] == 200
