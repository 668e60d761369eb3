"""A further kind of tier needs a store, a section of the policy and its registration, no more."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import aiohttp
import msgspec
import pytest
from pydantic import Field

from engine.config import decode_config
from engine.store.kinds import TIER_KINDS
from gateway.app import serve
from gateway.cli.main import main
from gateway.clock import SystemClock
from gateway.config import engine_configs, read_policy, read_settings, root_secret
from gateway.tier_specs import TIER_SECTIONS, TierSection
from policies.schema import Policy
from policies.sections import ModelPolicy, Section, TiersPolicy
from policies.values import NumBytes
from tests.fakes import toy_tier
from tests.fakes.toy_tier import TOY, ToySpec
from tests.gateway.serving import ANTHROPIC

SYSTEM = "The lighthouse keeper writes down every ship that passes. " * 20
BODY = {
    "model": "m",
    "max_tokens": 4,
    "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Hello"}],
}


class ToyTierPolicy(Section):
    bytes: NumBytes = Field(default=0, description="Bytes of toys. 0: no toys.")


class ToyTiersPolicy(TiersPolicy):
    toy: ToyTierPolicy = Field(default=ToyTierPolicy(), description="Toys.")


class ToyPolicy(Policy):
    tiers: ToyTiersPolicy = Field(default=ToyTiersPolicy(), description="Tiers.")


def toy_specs(policy: Policy, model: ModelPolicy, memory_nbytes: int) -> list[ToySpec]:
    """A folder below the home."""
    assert isinstance(policy, ToyPolicy)
    folder = read_settings().home / f"toys-of-{model.name}"
    return [ToySpec(str(folder), policy.tiers.toy.bytes)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a policy that has the tier alone, in a process that knows the kind."""
    for name in ("PORT", "PCG_HOST", "PCG_TEST_CLOCK", "PCG_SECRET_FILE", "PCG_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PCG_HOME", str(tmp_path))
    monkeypatch.setenv("PCG_POLICY", str(tmp_path / "policy.yaml"))
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "policy.yaml").write_text(
        "server: {port: 0, drain: {delay: 0s, timeout: 5s}}\n"
        "models: [{name: m, dtype: float32, context: 2048, engine: {kv_bytes: 64MiB}}]\n"
        "tiers: {ssd: {bytes: 0}, toy: {bytes: 64MiB}}\n"
    )
    monkeypatch.setattr("policies.load.Policy", ToyPolicy)
    monkeypatch.setitem(TIER_KINDS, "toy", TOY)  # type: ignore[arg-type]
    summary = TierSection("Toys", toy_specs, lambda policy: "many toys")
    monkeypatch.setitem(TIER_SECTIONS, "toy", summary)  # type: ignore[arg-type]
    return tmp_path


def pcg(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def test_its_configuration_reaches_a_worker(home: Path) -> None:
    """Through JSON and back, where the kind is known; elsewhere the error names it."""
    policy = read_policy(read_settings())
    (config,) = engine_configs(policy, policy.models[0], home, b"s" * 32)
    assert config.tiers == (ToySpec(str(home / "toys-of-m"), 64 * 1024**2),)
    data = msgspec.json.encode(config)
    assert decode_config(data, TIER_KINDS) == config
    known = {name: kind for name, kind in TIER_KINDS.items() if name != "toy"}
    with pytest.raises(msgspec.ValidationError, match="'toy'"):
        decode_config(data, known)


def test_the_policy_is_shown_with_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pcg check` has its line."""
    pcg("check")
    assert re.search(r"Toys +many toys", capsys.readouterr().out)


@pytest.mark.engine
async def test_an_engine_uses_it_and_operators_see_it(
    home: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker opens the tier and stores a prompt in it; metrics, `pcg cache stat`, `ls` and
    `verify` show it, of the running gateway and of what it has left."""
    settings = read_settings()
    policy, secret = read_policy(settings), root_secret(settings)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            policy,
            {"m": engine_configs(policy, policy.models[0], small_model, secret)},
            SystemClock(),
            url.set_result,
            root_secret=secret,
            command=(sys.executable, str(toy_tier.__file__)),
        )
    )
    await asyncio.wait([serving, url], return_when=asyncio.FIRST_COMPLETED)
    async with aiohttp.ClientSession(await url) as http:
        async with http.post("/v1/messages", json=BODY, headers=ANTHROPIC) as response:
            usage = (await response.json())["usage"]
            assert usage["cache_creation_input_tokens"] > 0
        async with http.get("/metrics") as response:
            shown = await response.text()
    assert 'pcg_store_up{model="m",store="toy",worker="0"} 1.0' in shown
    assert 'pcg_kv_objects{model="m",tier="toy",worker="0"}' in shown
    assert 'pcg_tier_toy_stuck{model="m",worker="0"} 0.0' in shown
    await asyncio.to_thread(pcg, "cache", "stat", "--url", url.result())
    shown = capsys.readouterr().out
    assert re.search(r"toy +\S+/toys-of-m +\d+ .* works", shown)
    assert re.search(r"tier_toy_up +1\b", shown)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await asyncio.to_thread(pcg, "cache", "stat")
    assert re.search(r"toy +\S+/toys-of-m +[1-9]", capsys.readouterr().out)
    await asyncio.to_thread(pcg, "cache", "ls")
    assert re.search(r"toy +default +system/0", capsys.readouterr().out)
    await asyncio.to_thread(pcg, "cache", "verify")
    assert re.search(r"[1-9]\d* objects whole .*, 0 damaged", capsys.readouterr().out)


def test_every_kind_has_its_parts() -> None:
    """Each kind of the engine is tagged with its name, and the policy has its section, in the order
    in which tiers are read."""
    names = list(TIER_KINDS)
    assert [kind.spec.__struct_config__.tag for kind in TIER_KINDS.values()] == names
    assert [kind.name for kind in TIER_KINDS.values()] == names
    assert list(TIER_SECTIONS) == names
    assert list(TiersPolicy.model_fields) == names
