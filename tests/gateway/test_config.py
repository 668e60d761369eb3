"""Where settings come from: environment, options, secret file, machine."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.store.disk.kind import SsdSpec
from engine.store.memory_kind import RamSpec
from engine.store.redis.kind import RedisSpec
from gateway.clock import FileClock, SystemClock
from gateway.config import (
    ConfigError,
    choose_clock,
    engine_configs,
    machine_memory_nbytes,
    read_policy,
    read_settings,
    root_secret,
)
from gateway.ssd_shares import folder_name, leftovers, occupied_nbytes, ssd_shares
from policies.errors import PolicyError
from tests.gateway.serving import make_policy


def test_options_beat_the_environment_beats_the_policy(tmp_path: Path) -> None:
    """Port and policy file: the option, then the environment, then the file."""
    file = tmp_path / "policy.yaml"
    file.write_text("server: {port: 1000}")
    environ = {"PCG_HOME": str(tmp_path), "PCG_POLICY": str(file)}
    assert read_policy(read_settings(environ)).server.port == 1000
    assert read_policy(read_settings(environ | {"PORT": "2000"})).server.port == 2000
    assert read_policy(read_settings(environ | {"PORT": "2000"}, port=0)).server.port == 0
    other = tmp_path / "other.yaml"
    other.write_text("server: {port: 3000}")
    assert read_policy(read_settings(environ, policy=other)).server.port == 3000


def test_home_has_a_default() -> None:
    """Without `PCG_HOME` everything lives in `~/.cache/pcg`."""
    assert read_settings({"HOME": "/somewhere"}).home == Path("/somewhere/.cache/pcg")
    assert read_settings({"HOME": "/somewhere", "PCG_HOME": "/else"}).home == Path("/else")


@pytest.mark.parametrize("port", ["x", "-1", "65536", "8.0"])
def test_bad_ports_are_refused(port: str) -> None:
    """`PORT` must be a port."""
    with pytest.raises(ConfigError, match="PORT"):
        read_settings({"PORT": port})


def test_listening_beyond_loopback_needs_tenants(tmp_path: Path) -> None:
    """Also when the address comes from an option."""
    with pytest.raises(PolicyError):
        read_policy(read_settings({"PCG_HOME": str(tmp_path)}, host="0.0.0.0"))


def test_the_test_clock_only_on_loopback(tmp_path: Path) -> None:
    """A file clock reads its file each time; anywhere but on loopback it is refused."""
    file = tmp_path / "now"
    file.write_text("1000.5")
    settings = read_settings({"PCG_HOME": str(tmp_path), "PCG_TEST_CLOCK": str(file)})
    clock = choose_clock(settings, make_policy())
    assert isinstance(clock, FileClock)
    assert clock() == 1000.5
    file.write_text("2000")
    assert clock() == 2000
    file.write_text("not yet wri")
    assert clock() == 2000
    open_policy = make_policy("server: {host: 0.0.0.0, allow_anonymous: true}")
    with pytest.raises(ConfigError, match="loopback"):
        choose_clock(settings, open_policy)
    file.unlink()
    with pytest.raises(ConfigError, match="epoch"):
        choose_clock(settings, make_policy())
    assert isinstance(choose_clock(read_settings({}), make_policy()), SystemClock)


def test_the_system_clock_never_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A correction of the wall clock must not revive what has expired."""
    now = iter([100.0, 90.0, 101.0])
    monkeypatch.setattr("time.time", lambda: next(now))
    clock = SystemClock()
    assert [clock(), clock(), clock()] == [100.0, 100.0, 101.0]


def test_the_secret_is_made_once(tmp_path: Path) -> None:
    """Sixteen starts at one moment agree on one secret, readable by its owner only, with nothing
    left beside it."""
    settings = read_settings({"PCG_HOME": str(tmp_path / "home")})
    with ThreadPoolExecutor(16) as pool:
        secrets = set(pool.map(lambda _: root_secret(settings), range(16)))
    assert len(secrets) == 1
    assert len(secrets.pop()) == 64
    assert (settings.home / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in settings.home.iterdir()] == ["secret"]


def test_a_given_secret_file(tmp_path: Path) -> None:
    """`PCG_SECRET_FILE` is used as it is and never made; a short or missing one is an error that
    names it."""
    file = tmp_path / "given"
    settings = read_settings({"PCG_HOME": str(tmp_path), "PCG_SECRET_FILE": str(file)})
    with pytest.raises(ConfigError, match="given"):
        root_secret(settings)
    file.write_text("short")
    with pytest.raises(ConfigError, match="16"):
        root_secret(settings)
    file.write_text("0123456789abcdef\n")
    assert root_secret(settings) == b"0123456789abcdef"
    assert not (tmp_path / "secret").exists()


def test_a_secret_others_can_read_is_refused(tmp_path: Path) -> None:
    """Our own file must stay private."""
    settings = read_settings({"PCG_HOME": str(tmp_path)})
    root_secret(settings)
    os.chmod(tmp_path / "secret", 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        root_secret(settings)


def test_the_engine_is_set_up_as_the_policy_says(tmp_path: Path) -> None:
    """Every key of a model's section reaches the engine; shares of memory become bytes."""
    policy = make_policy(
        "models: [{name: m, dtype: float32, context: 100, template: model, "
        "engine: {exact: 'on', kv_bytes: 50%, block_size: 8, max_sequences: 2, "
        "max_step_tokens: 64, max_mixed_tokens: 16, speculation: 'off', max_queue: 3, "
        "num_threads: 1}}]\n"
        "eviction: {score: lru}\ntiers: {ram: {bytes: 1MiB, force: true}}"
    )
    (config,) = engine_configs(policy, policy.models[0], tmp_path, b"s" * 32)
    assert (config.kv_nbytes, config.kv_share) == (machine_memory_nbytes() // 2, 0.5)
    assert (config.model, config.model_path, config.dtype, config.context) == (
        "m",
        str(tmp_path),
        "float32",
        100,
    )
    assert (config.template, config.exact, config.block_size, config.num_threads) == (
        "model",
        "on",
        8,
        1,
    )
    assert (config.max_sequences, config.max_step_tokens, config.max_queue) == (2, 64, 3)
    assert (config.mixed_tokens, config.speculation) == (16, "off")
    assert (config.eviction, config.tiers[0], config.force_store) == ("lru", RamSpec(1024**2), True)


def test_the_tiers_are_set_up_as_the_policy_says(tmp_path: Path) -> None:
    """The cap is shared by the models, each in a folder of its own; the Redis URL reaches the
    engine with its password."""
    policy = make_policy(
        f"models: [{{name: a}}, {{name: org/b}}]\ntiers: {{ssd: {{path: {tmp_path}, bytes: 4MiB, "
        "min_free: 1MiB, "
        "encrypt: true}, redis: {url: 'redis://:word@host', timeout: 20ms, prefix: 'x:'}}"
    )
    configs = [
        config
        for model in policy.models
        for config in engine_configs(policy, model, tmp_path, b"s" * 32)
    ]
    redis = RedisSpec("redis://:word@host", 0.02, "x:", host="host:6379")
    assert [config.tiers for config in configs] == [
        (SsdSpec(str(tmp_path / name), 2 * 1024**2, 1024**2, "cost"), redis)
        for name in ("a", "org%2Fb")
    ]
    assert configs[0].encrypt


def test_tiers_can_be_off(tmp_path: Path) -> None:
    """No bytes: no folder. No URL: no Redis."""
    policy = make_policy(f"tiers: {{ssd: {{path: {tmp_path}, bytes: 0}}}}")
    (config,) = engine_configs(policy, policy.models[0], tmp_path, b"s" * 32)
    assert config.tiers == ()


def test_what_else_lies_in_the_folder_counts_against_the_cap(tmp_path: Path) -> None:
    """Folders of models that are no longer served leave less for those that are, down to
    nothing."""
    policy = make_policy(
        f"models: [{{name: m}}]\ntiers: {{ssd: {{path: {tmp_path}, bytes: 1MiB}}}}"
    )
    old, own = tmp_path / "old", tmp_path / "m"
    for folder in (old, own):
        folder.mkdir()
        (folder / "object").write_bytes(bytes(256 * 1024))
    assert leftovers(policy) == [old]
    shares = ssd_shares(policy, policy.models[0])
    assert shares is not None
    assert shares[0].nbytes == 1024**2 - occupied_nbytes(old) <= 768 * 1024
    (old / "another").write_bytes(bytes(1024**2))
    assert ssd_shares(policy, policy.models[0]) is None


def test_workers_share_what_a_model_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the same device, threads, pins and SSD are dealt out; each has a folder of its own,
    the first the model's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(7))
    policy = make_policy(
        "models: [{name: m, engine: {workers: 3, kv_bytes: 6MiB, device: ['cuda:0', 'cuda:1']}}, "
        "{name: other}]\n"
        f"tiers: {{ram: {{bytes: 3MiB}}, ssd: {{path: {tmp_path}, bytes: 12MiB}}}}\neviction: "
        f"{{pinned: 3MiB}}"
    )
    configs = engine_configs(policy, policy.models[0], tmp_path, b"s" * 32)
    assert [config.device for config in configs] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [config.kv_nbytes for config in configs] == [3 * 1024**2, 6 * 1024**2, 3 * 1024**2]
    assert {config.kv_share for config in configs} == {0.0}
    min_free = policy.tiers.ssd.min_free
    assert [config.tiers for config in configs] == [
        (RamSpec(1024**2), SsdSpec(str(tmp_path / name), 2 * 1024**2, min_free, "cost"))
        for name in ("m", "m#1", "m#2")
    ]
    assert {(config.pin_nbytes, config.num_threads) for config in configs} == {(1024**2, 2)}
    (alone,) = engine_configs(policy, policy.models[1], tmp_path, b"s" * 32)
    assert (alone.num_threads, alone.tiers[1].nbytes, alone.device) == (0, 6 * 1024**2, "auto")


def test_workers_share_a_share_of_their_device(tmp_path: Path) -> None:
    """What is left of a share on each device, whatever memory it turns out to have."""
    policy = make_policy(
        "models: [{name: m, engine: {workers: 3, kv_bytes: 30%, device: ['cuda:0', 'cuda:1']}}]"
    )
    configs = engine_configs(policy, policy.models[0], tmp_path, b"s" * 32)
    assert [config.kv_share for config in configs] == [0.15, 0.3, 0.15]


def test_folders_of_workers_that_are_gone_count_against_the_cap(tmp_path: Path) -> None:
    """As those of models do: what three workers wrote is in the way of the two that are left."""
    for name in ("m", "m#1", "m#2"):
        (tmp_path / name).mkdir()
    text = "models: [{name: m, engine: {workers: 2}}]\ntiers: {ssd: {path: %s}}"
    assert leftovers(make_policy(text % tmp_path)) == [tmp_path / "m#2"]


def test_more_devices_than_workers_are_refused() -> None:
    """A device nobody would use is a mistake."""
    with pytest.raises(PolicyError, match="more devices than workers"):
        make_policy("models: [{name: m, engine: {device: ['cuda:0', 'cuda:1']}}]")


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a_b", "org/model:1"])
def test_folder_names_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    """Whatever a model is called, its folder lies directly below the root, and belongs to no other
    model."""
    assert (tmp_path / folder_name(name)).resolve().parent == tmp_path.resolve()
    assert folder_name(name) != folder_name(name.replace("/", "_") + "_")


def test_the_environments_redis_beats_the_policy(tmp_path: Path) -> None:
    """`PCG_REDIS_URL` is where a password belongs; it shows up in no settings and no message."""
    file = tmp_path / "policy.yaml"
    file.write_text("tiers: {redis: {url: redis://in-the-file}}")
    environ = {"PCG_HOME": str(tmp_path), "PCG_POLICY": str(file)}
    settings = read_settings(environ | {"PCG_REDIS_URL": "redis://:opensesame@elsewhere"})
    url = read_policy(settings).tiers.redis.url
    assert url is not None
    assert url.host == "elsewhere:6379"
    assert "opensesame" not in repr(settings)
    with pytest.raises(PolicyError, match=r"tiers\.redis\.url: must be a URL") as caught:
        read_policy(read_settings(environ | {"PCG_REDIS_URL": "opensesame"}))
    assert "opensesame" not in str(caught.value)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    """Memory is the smaller of the machine's and the container's."""
    limit = tmp_path / "memory.max"
    limit.write_text("12345")
    assert machine_memory_nbytes(limit) == 12345
    limit.write_text("max")
    assert machine_memory_nbytes(limit) == machine_memory_nbytes(tmp_path / "none") > 12345
