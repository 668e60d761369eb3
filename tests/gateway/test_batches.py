"""Message batches through the official SDK: created, worked through, read, cancelled,
deleted; kept over a restart.
"""

from __future__ import annotations

import asyncio
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gateway.errors import EngineFailed
from gateway.request import Request
from gateway.state.batches import BatchStore
from policies.pricing import Prices
from tests.fakes.backend import Script, ScriptedBackend
from tests.fakes.upstream import FakeUpstream, say_json
from tests.gateway.serving import ANTHROPIC, Served, serving

KEYS = "tenants: [{name: one, keys: [one]}, {name: two, keys: [two]}]"


def item(name: str, **changes: Any) -> Any:
    fields = {
        "model": "claude-sonnet-5",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": name}],
    }
    return {"custom_id": name, "params": fields | changes}


@asynccontextmanager
async def opened(
    folder: Path, backend: ScriptedBackend | None = None, policy: str = KEYS
) -> AsyncIterator[tuple[Served, anthropic.AsyncAnthropic]]:
    async with (
        serving(backend or ScriptedBackend(), policy, batches=folder) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="one", max_retries=0) as client,
    ):
        yield served, client


async def ended(client: anthropic.AsyncAnthropic, name: str) -> Any:
    """The batch once it has ended."""
    async with asyncio.timeout(20):
        while (batch := await client.messages.batches.retrieve(name)).processing_status != "ended":
            await asyncio.sleep(0)
    return batch


async def outcomes(client: anthropic.AsyncAnthropic, name: str) -> dict[str, Any]:
    return {
        line.custom_id: line.result async for line in await client.messages.batches.results(name)
    }


async def test_from_creation_to_deletion(tmp_path: Path) -> None:
    """Every request gets its own outcome; counts, times and results are the SDK's shapes; then it
    is gone."""
    async with opened(tmp_path / "b") as (_, client):
        made = await client.messages.batches.create(
            requests=[
                item("good"),
                item("wrong", messages=[]),
                item("warm", max_tokens=0),
                item("live", stream=True),
            ]
        )
        assert made.id.startswith("msgbatch_")
        assert (made.processing_status, made.results_url, made.ended_at) == (
            "in_progress",
            None,
            None,
        )
        assert made.request_counts.processing == 4
        assert (made.expires_at - made.created_at).total_seconds() == 86400
        batch = await ended(client, made.id)
        counts = batch.request_counts
        assert (
            counts.processing,
            counts.succeeded,
            counts.errored,
            counts.canceled,
            counts.expired,
        ) == (0, 1, 3, 0, 0)
        found = await outcomes(client, made.id)
        assert found["good"].type == "succeeded"
        assert found["good"].message.content[0].text == "Hello world"
        assert found["good"].message.usage.service_tier == "batch"
        for name in ("wrong", "warm", "live"):
            assert found[name].type == "errored"
            assert found[name].error.error.type == "invalid_request_error"
        assert (await client.messages.batches.delete(made.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(made.id)
        assert not [path for path in (tmp_path / "b").rglob("*") if path.is_file()]


async def test_no_batch_for_an_upstream(tmp_path: Path) -> None:
    """A batch is worked through here alone; its tenant may ask the upstream itself."""
    upstream = FakeUpstream(say_json({"usage": {"input_tokens": 3, "output_tokens": 2}}))
    async with upstream.listening() as up:
        entry = f"{{name: up, api: anthropic, base_url: '{up.url}', models: [{{match: far}}]}}"
        async with opened(tmp_path / "b", policy=f"{KEYS}\nbackends: [{entry}]") as (_, client):
            made = await client.messages.batches.create(requests=[item("a", model="far")])
            await ended(client, made.id)
            found = await outcomes(client, made.id)
            assert found["a"].error.error.type == "invalid_request_error"
            assert "batches" in found["a"].error.error.message
            assert not up.got
            await client.messages.create(**item("a", model="far")["params"])
            assert len(up.got) == 1


@pytest.mark.parametrize(
    ("headers", "base"),
    [
        ({"Host": "gateway:8080"}, "http://gateway:8080"),
        ({"Host": "gateway:8080", "X-Forwarded-Proto": "https"}, "https://gateway:8080"),
        (
            {"X-Forwarded-Proto": "HTTPS, http", "X-Forwarded-Host": "llm.example, inner"},
            "https://llm.example",
        ),
        ({"Host": "gateway:8080", "X-Forwarded-Proto": "gopher"}, "http://gateway:8080"),
    ],
)
async def test_results_are_where_the_client_came_from(
    tmp_path: Path, headers: dict[str, str], base: str
) -> None:
    """The SDK sends its key to `results_url`: behind a proxy that takes TLS off, that must be the
    proxy's, with TLS."""
    async with opened(tmp_path) as (served, client):
        made = await client.messages.batches.create(requests=[item("a")])
        await ended(client, made.id)
        path = f"/v1/messages/batches/{made.id}"
        async with served.http.get(
            path, headers=ANTHROPIC | {"x-api-key": "one"} | headers
        ) as response:
            assert (await response.json())["results_url"] == f"{base}{path}/results"


async def test_half_the_price(tmp_path: Path) -> None:
    """Of prompt and answer; the record has the same."""
    async with opened(tmp_path) as (served, client):
        one = item("x")["params"]
        await client.messages.create(**one)
        made = await client.messages.batches.create(requests=[item("x")])
        await ended(client, made.id)
        direct, batched = [r.bill for r in served.records if r.bill is not None]
        assert batched.charge.total == direct.charge.total / 2 > 0
    prices = Prices("v", Decimal(3), Decimal(15), Decimal("0.1"), {300.0: Decimal("1.25")})
    half = prices.times(Decimal("0.5"))
    assert (half.input_usd_per_mtok, half.output_usd_per_mtok, half.read_multiplier) == (
        Decimal("1.5"),
        Decimal("7.5"),
        Decimal("0.1"),
    )


async def test_lists_by_page(tmp_path: Path) -> None:
    """The newest first, onward and back; nobody else's."""
    async with opened(tmp_path) as (served, client):
        names = []
        for i in range(3):
            served.clock.advance(1)
            names.insert(0, (await client.messages.batches.create(requests=[item(f"r{i}")])).id)
        page = await client.messages.batches.list(limit=2)
        assert ([batch.id for batch in page.data], page.has_more) == (names[:2], True)
        assert [batch.id async for batch in client.messages.batches.list(limit=1)] == names
        before = await client.messages.batches.list(before_id=names[2], limit=1)
        assert ([batch.id for batch in before.data], before.has_more) == ([names[1]], True)
        other = client.with_options(api_key="two")
        assert (await other.messages.batches.list()).data == []
        with pytest.raises(anthropic.NotFoundError):
            await other.messages.batches.retrieve(names[0])
        for query in (
            {"limit": 0},
            {"limit": 1001},
            {"after_id": "msgbatch_x"},
            {"after_id": names[0], "before_id": names[1]},
        ):
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.batches.list(**query)  # type: ignore[arg-type]


async def test_cancelling(tmp_path: Path) -> None:
    """What runs ends, what waits is cancelled; before the end there are no results and no
    deletion."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_started=gate))
    async with opened(tmp_path, backend, f"{KEYS}\nserver: {{batches: {{concurrency: 1}}}}") as (
        served,
        client,
    ):
        made = await client.messages.batches.create(requests=[item(f"r{i}") for i in range(4)])
        await backend.held.wait()
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.delete(made.id)
        async with served.http.get(
            f"/v1/messages/batches/{made.id}/results", headers={"x-api-key": "one"}
        ) as response:
            assert response.status == 400
        cancelling = await client.messages.batches.cancel(made.id)
        assert (cancelling.processing_status, cancelling.cancel_initiated_at is None) == (
            "canceling",
            False,
        )
        assert (
            await client.messages.batches.cancel(made.id)
        ).cancel_initiated_at == cancelling.cancel_initiated_at
        gate.set()
        counts = (await ended(client, made.id)).request_counts
        assert (counts.succeeded, counts.canceled) == (1, 3)


async def test_a_restart_goes_on(tmp_path: Path) -> None:
    """What was answered stays, what was not is answered by the next gateway; files are the owner's
    alone."""
    gate, seen = asyncio.Event(), []

    def script(request: Request) -> Script:
        seen.append(request.id)
        return Script(before_started=None if len(seen) == 1 else gate)

    backend = ScriptedBackend(script)
    async with opened(tmp_path, backend, f"{KEYS}\nserver: {{batches: {{concurrency: 1}}}}") as (
        _,
        client,
    ):
        made = await client.messages.batches.create(requests=[item(f"r{i}") for i in range(3)])
        await backend.held.wait()
    assert {
        stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()
    } == {0o600}
    with next(tmp_path.rglob("results.jsonl")).open("ab") as torn:
        torn.write(b'{"custom_id": "r1", "resu')
    async with opened(tmp_path) as (_, client):
        counts = (await ended(client, made.id)).request_counts
        assert counts.succeeded == 3
        assert sorted(await outcomes(client, made.id)) == ["r0", "r1", "r2"]
    assert len(seen) == 2


async def test_time_runs_out(tmp_path: Path) -> None:
    """A day after it was made what is left has expired; a month after, the batch is forgotten."""
    gate = asyncio.Event()
    backend = ScriptedBackend(Script(before_started=gate))
    async with opened(tmp_path, backend, f"{KEYS}\nserver: {{batches: {{concurrency: 1}}}}") as (
        served,
        client,
    ):
        made = await client.messages.batches.create(requests=[item("a"), item("b")])
        await backend.held.wait()
        served.clock.advance(86400)
        gate.set()
        counts = (await ended(client, made.id)).request_counts
        assert (counts.succeeded, counts.expired) == (1, 1)
        served.clock.advance(28 * 86400)
        other = await client.messages.batches.create(requests=[item("c")])
        await ended(client, other.id)
        await client.messages.batches.create(requests=[item("d")])
        async with asyncio.timeout(20):
            while made.id in [batch.id async for batch in client.messages.batches.list()]:
                await asyncio.sleep(0)


async def test_engine_errors_are_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that fails is asked again, and in the end the failure is the result."""
    monkeypatch.setattr("gateway.http.batch_routes.RETRY_S", 0.0)
    backend = ScriptedBackend(Script(error=EngineFailed("broken")))
    async with opened(tmp_path, backend) as (_, client):
        made = await client.messages.batches.create(requests=[item("a")])
        await ended(client, made.id)
        assert (await outcomes(client, made.id))["a"].error.error.type == "api_error"
    assert len(backend.requests) == 20


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (None, "requests: Field required"),
        ([], "requests: List should have at least 1 item after validation"),
        (
            [item("a b")],
            "requests.0.custom_id: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'",
        ),
        ([item("a"), item("a")], "requests.1.custom_id: custom_id must be unique within a batch"),
        ([{"custom_id": "a"}], "requests.0.params: Field required"),
        ([{"params": {}}], "requests.0.custom_id: Field required"),
    ],
)
async def test_refused(tmp_path: Path, requests: Any, message: str) -> None:
    """A batch that is none is a 400 with its path, and nothing is kept."""
    async with opened(tmp_path) as (served, _):
        body = {} if requests is None else {"requests": requests}
        async with served.http.post(
            "/v1/messages/batches", json=body, headers={"x-api-key": "one"}
        ) as response:
            assert response.status == 400
            assert (await response.json())["error"]["message"] == message
        async with served.http.post("/v1/messages/batches", json=body) as response:
            assert response.status == 401
    assert not list(tmp_path.iterdir())


async def test_bounds(tmp_path: Path) -> None:
    """A full folder is the provider's overload; without room there are no batches at all."""
    async with opened(tmp_path, policy=f"{KEYS}\nserver: {{batches: {{bytes: 300}}}}") as (
        _,
        client,
    ):
        await client.messages.batches.create(requests=[item("a")])
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.batches.create(requests=[item("b"), item("c")])
        assert caught.value.status_code == 529
    async with opened(tmp_path / "none", policy=f"{KEYS}\nserver: {{batches: {{bytes: 0}}}}") as (
        _,
        client,
    ):
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.list()


async def test_damage_costs_the_damaged_batch_alone(tmp_path: Path) -> None:
    """A batch whose files were damaged keeps neither the gateway from starting nor other batches
    from being served."""
    gate = asyncio.Event()
    async with opened(tmp_path, ScriptedBackend(Script(before_started=gate))) as (_, client):
        names = [
            (await client.messages.batches.create(requests=[item("a"), item("b")])).id
            for _ in range(3)
        ]
    lost, half, whole = (next(tmp_path.glob(f"*/{name}")) for name in names)
    (lost / "batch.json").write_bytes(b"{")
    (half / "results.jsonl").write_bytes(b"nonsense\n")
    lines = (half / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (half / "requests.jsonl").write_bytes(b"nonsense\n" + lines[1])
    async with opened(tmp_path) as (_, client):
        await ended(client, whole.name)
        await ended(client, half.name)
        assert list(await outcomes(client, whole.name)) == ["a", "b"]
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(lost.name)


async def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be taken in is the provider's overload and leaves nothing; what cannot be written
    down is tried again."""
    monkeypatch.setattr("gateway.http.batch_routes.STUCK_S", 0.0)
    failures = iter([OSError(28, "full")])

    def add(store: BatchStore, *args: Any) -> None:
        for failure in failures:
            raise failure
        real(store, *args)

    real = BatchStore.add
    async with opened(tmp_path) as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(BatchStore, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.batches.create(requests=[item("a")])
        assert caught.value.status_code == 529
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        monkeypatch.setattr(BatchStore, "add", add)
        made = await client.messages.batches.create(requests=[item("a"), item("b")])
        assert (await ended(client, made.id)).request_counts.succeeded == 2


async def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """A batch whose folder somebody has removed can still be deleted, and what it took is free
    again."""
    async with opened(tmp_path, policy=f"{KEYS}\nserver: {{batches: {{bytes: 2000}}}}") as (
        _,
        client,
    ):
        made = await client.messages.batches.create(
            requests=[item("a", metadata={"user_id": "u" * 600})]
        )
        await ended(client, made.id)
        shutil.rmtree(next(tmp_path.glob(f"*/{made.id}")))
        assert (await client.messages.batches.delete(made.id)).type == "message_batch_deleted"
        await ended(
            client,
            (
                await client.messages.batches.create(
                    requests=[item("b", metadata={"user_id": "u" * 600})]
                )
            ).id,
        )


async def test_old_batches_that_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that keeps what should go, or has lost it already, ends neither the gateway nor the
    work on new batches."""
    async with opened(tmp_path) as (served, client):
        names = [(await client.messages.batches.create(requests=[item("a")])).id for _ in range(2)]
        for name in names:
            await ended(client, name)
        shutil.rmtree(next(tmp_path.glob(f"*/{names[0]}")))
        served.clock.advance(30 * 86400)
        with monkeypatch.context() as patch:
            patch.setattr(
                shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "read-only"))
            )
            await ended(client, (await client.messages.batches.create(requests=[item("b")])).id)
            assert {batch.id async for batch in client.messages.batches.list()} >= {names[1]}
        await ended(client, (await client.messages.batches.create(requests=[item("c")])).id)
        await ended(client, (await client.messages.batches.create(requests=[item("d")])).id)
        assert not {batch.id async for batch in client.messages.batches.list()} & set(names)


@pytest.mark.parametrize("limit", ["0", "1001", "x", "9" * 5000])
async def test_a_limit_that_is_none(tmp_path: Path, limit: str) -> None:
    """A page of no possible size is a 400."""
    async with opened(tmp_path) as (_, client):
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.list(extra_query={"limit": limit})
