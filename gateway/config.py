"""The only reader of the environment, the secret file and the machine's size.

Knows no HTTP and starts nothing. Options of the command beat the environment, which beats the
policy file.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from engine.config import EngineConfig
from engine.store.disk.kind import SsdSpec
from gateway.clock import Clock, FileClock, SystemClock
from gateway.tier_specs import tiers_of_workers
from policies.load import load_policy
from policies.schema import Policy
from policies.sections import ModelPolicy
from policies.tenancy import is_loopback

_MIN_SECRET_NBYTES: Final = 16


class ConfigError(Exception):
    """The gateway cannot start as it is set up; the message names the change to make."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command and the environment. `${ENV:NAME}` in the policy names a value of
    `environ`."""

    home: Path
    policy_file: Path | None
    host: str | None
    port: int | None
    test_clock: Path | None
    secret_file: Path | None
    environ: Mapping[str, str] = field(repr=False)
    redis_url: str | None = field(default=None, repr=False)


def read_settings(
    environ: Mapping[str, str] = os.environ,
    *,
    policy: Path | None = None,
    host: str | None = None,
    port: int | None = None,
) -> Settings:
    """Settings from the environment, overridden by the arguments. Raises `ConfigError`.

    Reads `PCG_HOME` (default `~/.cache/pcg`), `PCG_POLICY`, `PCG_HOST`, `PORT`, `PCG_REDIS_URL`,
    `PCG_TEST_CLOCK`, `PCG_SECRET_FILE`.
    """
    home = Path(
        environ.get("PCG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache" / "pcg"
    ).absolute()
    return Settings(
        home=home,
        policy_file=policy or _path(environ, "PCG_POLICY"),
        host=host or environ.get("PCG_HOST") or None,
        port=port if port is not None else _port(environ.get("PORT")),
        test_clock=_path(environ, "PCG_TEST_CLOCK"),
        secret_file=_path(environ, "PCG_SECRET_FILE"),
        environ={**environ, "PCG_HOME": str(home)},
        redis_url=environ.get("PCG_REDIS_URL") or None,
    )


def read_policy(settings: Settings) -> Policy:
    """The policy as it will be served. Raises `PolicyError`."""
    overrides = {
        "server": {"host": settings.host, "port": settings.port},
        "tiers": {"redis": {"url": settings.redis_url}},
    }
    return load_policy(settings.policy_file, settings.environ, overrides=overrides)


def choose_clock(settings: Settings, policy: Policy) -> Clock:
    """The wall clock, or the test clock where `PCG_TEST_CLOCK` names a file: only on loopback.
    Raises `ConfigError`."""
    if settings.test_clock is None:
        return SystemClock()
    if not is_loopback(policy.server.host):
        raise ConfigError(
            "PCG_TEST_CLOCK is for tests and refused unless bound to loopback, not "
            f"{policy.server.host}"
        )
    try:
        return FileClock(settings.test_clock)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"PCG_TEST_CLOCK: {settings.test_clock} does not hold epoch seconds"
        ) from error


def root_secret(settings: Settings) -> bytes:
    """The secret that keys every cached block. Made at first start, mode 0600, unless the
    environment names a file. Raises `ConfigError`.

    Gateways that start at the same moment agree on one secret: the file appears whole or not at
    all.
    """
    path = settings.secret_file or settings.home / "secret"
    try:
        if settings.secret_file is None and not path.exists():
            _make_secret(path)
        secret = path.read_bytes().strip()
        if settings.secret_file is None and path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} must be readable by its owner only: chmod 600 {path}")
    except OSError as error:
        raise ConfigError(f"the secret file {path} cannot be used: {error.strerror}") from error
    if len(secret) < _MIN_SECRET_NBYTES:
        raise ConfigError(f"the secret file {path} must hold at least {_MIN_SECRET_NBYTES} bytes")
    return secret


def engine_configs(
    policy: Policy, model: ModelPolicy, model_path: Path, secret: bytes
) -> tuple[EngineConfig, ...]:
    """The configuration of each worker of a model on this machine.

    The workers share the model's part: those on one device its KV pool, all of them the rest.
    """
    memory_nbytes = machine_memory_nbytes()
    whole = _whole_config(policy, model, model_path, secret, memory_nbytes)
    engine, tiers = model.engine, tiers_of_workers(policy, model, memory_nbytes)
    devices = [engine.device[worker % len(engine.device)] for worker in range(engine.workers)]
    files_nbytes = sum(
        spec.nbytes for specs in tiers for spec in specs if isinstance(spec, SsdSpec)
    )
    pin_nbytes = policy.eviction.pinned.resolve(files_nbytes or whole.kv_nbytes)
    return tuple(
        msgspec.structs.replace(
            whole,
            device=device,
            kv_nbytes=whole.kv_nbytes // devices.count(device),
            kv_share=whole.kv_share / devices.count(device),
            num_threads=engine.num_threads or _fair_threads(engine.workers),
            pin_nbytes=pin_nbytes // engine.workers,
            tiers=tiers[worker],
        )
        for worker, device in enumerate(devices)
    )


def _whole_config(
    policy: Policy, model: ModelPolicy, model_path: Path, secret: bytes, memory_nbytes: int
) -> EngineConfig:
    """The configuration of a model as if it had one worker, without tiers."""
    engine, tiers = model.engine, policy.tiers
    return EngineConfig(
        model=model.name,
        model_path=str(model_path),
        root_secret=secret,
        dtype=model.dtype,
        context=model.context,
        template=model.template,
        template_clock=policy.caching.normalize.template_clock,
        exact=engine.exact,
        runner=engine.runner,
        kv_nbytes=engine.kv_bytes.resolve(memory_nbytes),
        kv_share=float(engine.kv_bytes.share or 0),
        block_size=engine.block_size,
        max_sequences=engine.max_sequences,
        max_step_tokens=engine.max_step_tokens,
        max_mixed_tokens=engine.max_mixed_tokens,
        speculation=engine.speculation,
        max_queue=engine.max_queue,
        eviction=policy.eviction.score,
        force_store=tiers.ram.force,
        encrypt=tiers.ssd.encrypt,
    )


def _fair_threads(num_workers: int) -> int:
    """CPU threads of each of several workers, so that together they have one per core; 0, the
    engine's choice, for one."""
    if num_workers == 1:
        return 0
    num_cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(num_cores // num_workers, 1)


def machine_memory_nbytes(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """RAM this process may use: the machine's, or the container's limit (cgroup v2) where that is
    less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(limit_file.read_text()))
    except (OSError, ValueError):  # no cgroup, or "max"
        return total


def _make_secret(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".secret-") as draft:  # mode 0600
        draft.write(secrets.token_hex(32).encode())
        draft.flush()
        os.fsync(draft.fileno())
        try:
            os.link(draft.name, path)
        except FileExistsError:
            return  # another gateway was first: its secret is the one


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _port(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) > 65535:
        raise ConfigError(f"PORT must be a number from 0 to 65535, not {text!r}")
    return int(text)
