"""The rules between the keys of a policy whose single values are all right. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from policies.document import KeyPath
from policies.rules import DialectPolicy, PresetPolicy
from policies.schema import Policy
from policies.tenancy import is_loopback
from policies.ttl import parse_duration

LONGEST_S: Final = 100 * 365 * 86400.0
"""Of a lifetime: an expiry much later than that stands for none."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A rule between keys that the policy breaks, reported at one of them."""

    path: KeyPath
    message: str


def conflicts(policy: Policy) -> Iterator[Conflict]:
    """Every broken rule."""
    yield from _memory(policy)
    yield from _models(policy)
    yield from _backends(policy)
    yield from _ttl_classes(policy)
    yield from _presets(policy)
    yield from _prices(policy)
    for i, dialect in enumerate(policy.dialects):
        yield from _dialect(policy, dialect, ("dialects", i))
    yield from _tenants(policy)


def _memory(policy: Policy) -> Iterator[Conflict]:
    memory = policy.server.memory
    if not memory.bytes:
        yield Conflict(("server", "memory", "bytes"), "must be more than 0")
    elif not memory.tenant_bytes.resolve(memory.bytes):
        yield Conflict(("server", "memory", "tenant_bytes"), "must be more than 0")


def _models(policy: Policy) -> Iterator[Conflict]:
    if not policy.models and not policy.backends:
        yield Conflict(("models",), "at least one model is needed, or one of backends")
    names: set[str] = set()
    for i, model in enumerate(policy.models):
        if model.name in names:
            yield Conflict(("models", i, "name"), "another model has this name")
        names.add(model.name)
        engine = model.engine
        if len(engine.device) > engine.workers:
            yield Conflict(
                ("models", i, "engine", "device"), f"more devices than workers ({engine.workers})"
            )
        if engine.max_step_tokens < engine.block_size:
            path = ("models", i, "engine", "max_step_tokens")
            yield Conflict(path, f"must be at least block_size ({engine.block_size})")


def _backends(policy: Policy) -> Iterator[Conflict]:
    names = {model.name for model in policy.models}
    for i, backend in enumerate(policy.backends):
        path: KeyPath = ("backends", i)
        if backend.name in names:
            yield Conflict((*path, "name"), "another backend or model has this name")
        names.add(backend.name)
        if not backend.models:
            yield Conflict((*path, "models"), "at least one model id is needed")
        if backend.pass_client_key and policy.tenants:
            yield Conflict(
                (*path, "pass_client_key"),
                "the keys that clients of tenants send are this gateway's: use api_key",
            )
        if backend.pass_client_key and backend.api_key is not None:
            yield Conflict((*path, "pass_client_key"), "there is an api_key already")


def _ttl_classes(policy: Policy) -> Iterator[Conflict]:
    """The lifetime identifies the class from the plan to the bill, and no entry may look pinned."""
    longest = f"must be at most {LONGEST_S / 86400:.0f}d"
    if policy.caching.unmarked_ttl > LONGEST_S:
        yield Conflict(("caching", "unmarked_ttl"), longest)
    previous: tuple[str, float] | None = None
    for name, lifetime_s in sorted(
        policy.caching.ttl_classes.items(), key=lambda item: parse_duration(item[0])
    ):
        if previous is not None and lifetime_s <= previous[1]:
            yield Conflict(
                ("caching", "ttl_classes", name), f"must live longer than class {previous[0]}"
            )
        elif lifetime_s > LONGEST_S:
            yield Conflict(("caching", "ttl_classes", name), longest)
        previous = (name, lifetime_s)


def _presets(policy: Policy) -> Iterator[Conflict]:
    for preset_name in type(policy.presets).model_fields:
        preset: PresetPolicy = getattr(policy.presets, preset_name)
        yield from _known_classes(
            policy, preset.ttl_classes, ("presets", preset_name, "ttl_classes")
        )
        if preset.default_ttl not in preset.ttl_classes:
            yield Conflict(
                ("presets", preset_name, "default_ttl"),
                f"must be one of ttl_classes ({', '.join(preset.ttl_classes)})",
            )


def _prices(policy: Policy) -> Iterator[Conflict]:
    yield from _known_classes(
        policy, policy.prices.multipliers.write, ("prices", "multipliers", "write")
    )
    for i, entry in enumerate(policy.prices.models):
        yield from _known_classes(policy, entry.write or {}, ("prices", "models", i, "write"))


def _known_classes(
    policy: Policy, names: Mapping[str, object] | Sequence[str], path: KeyPath
) -> Iterator[Conflict]:
    for i, name in enumerate(names):
        if name not in policy.caching.ttl_classes:
            yield Conflict(
                (*path, name if isinstance(names, Mapping) else i),
                f"caching.ttl_classes has no class {name}",
            )


def _dialect(policy: Policy, dialect: DialectPolicy, path: KeyPath) -> Iterator[Conflict]:
    own = dialect.model_fields_set
    if "ttl_classes" in own:
        yield from _known_classes(policy, dialect.ttl_classes, (*path, "ttl_classes"))
    names = (
        tuple(type(policy.presets).model_fields) if dialect.preset == "auto" else (dialect.preset,)
    )
    for name in names:
        rules = dialect.over(getattr(policy.presets, name))
        classes, default = rules["ttl_classes"], rules["default_ttl"]
        if default not in classes and own & {"ttl_classes", "default_ttl"}:
            message = f"{default}, the default, must be one of ttl_classes ({', '.join(classes)})"
            yield Conflict((*path, "default_ttl"), message)
            return


def _tenants(policy: Policy) -> Iterator[Conflict]:
    host = policy.server.host
    if not policy.tenants and not policy.server.allow_anonymous and not is_loopback(host):
        message = (
            f"no tenants configured: refusing to listen on {host} (see server.allow_anonymous)"
        )
        yield Conflict(("server", "host"), message)
    names: set[str] = set()
    owners: dict[bytes, str] = {}
    for i, tenant in enumerate(policy.tenants):
        if tenant.name in names:
            yield Conflict(("tenants", i, "name"), "another tenant has this name")
        names.add(tenant.name)
        if not tenant.keys:
            yield Conflict(("tenants", i, "keys"), "at least one key is needed")
        for j, key in enumerate(tenant.keys):
            owner = owners.setdefault(key.digest, tenant.name)
            if owner != tenant.name:
                yield Conflict(
                    ("tenants", i, "keys", j), f"this key already belongs to tenant {owner}"
                )
