"""From the policy's section of each kind of tier to the tiers of a model's workers.

Opens nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.store.disk.kind import SsdSpec
from engine.store.kind import TierSpec
from engine.store.memory_kind import RamSpec
from engine.store.redis.kind import RedisSpec
from gateway.ssd_shares import leftovers, ssd_folders, ssd_root, ssd_shares
from policies.schema import Policy
from policies.sections import ModelPolicy
from policies.size import Size


@dataclass(frozen=True, slots=True)
class TierSection:
    """The section `tiers.NAME` of the policy, read for one kind of tier.

    `specs` gives the tier of each worker of a model, from the bytes of RAM of the machine; an empty
    sequence where the policy has none. `summary` describes the tier to operators, without secrets;
    an empty text where there is nothing to show. `unused` yields places with objects of workers
    that are not in the policy any more, none of which is among the given specs.
    """

    title: str
    specs: Callable[[Policy, ModelPolicy, int], Sequence[TierSpec]]
    summary: Callable[[Policy], str] = lambda policy: ""
    unused: Callable[[Policy, Collection[TierSpec]], Iterator[TierSpec]] = lambda policy, specs: (
        iter(())
    )


def _ram_specs(policy: Policy, model: ModelPolicy, memory_nbytes: int) -> Sequence[RamSpec]:
    num_workers = model.engine.workers
    nbytes = policy.tiers.ram.bytes.resolve(memory_nbytes) // num_workers
    return [RamSpec(nbytes)] * num_workers if nbytes else []


def _ssd_specs(policy: Policy, model: ModelPolicy, memory_nbytes: int) -> Sequence[SsdSpec]:
    return [
        SsdSpec(str(share.folder), share.nbytes, policy.tiers.ssd.min_free, policy.eviction.score)
        for share in ssd_shares(policy, model) or ()
    ]


def _ssd_summary(policy: Policy) -> str:
    ssd = policy.tiers.ssd
    if not ssd.bytes:
        return "none"
    encrypted = ", encrypted" if ssd.encrypt else ""
    cap = f"at most {Size(ssd.bytes)}, always leaving {Size(ssd.min_free)} free"
    return f"{ssd_root(policy)}, {cap}{encrypted}"


def _unused_folders(policy: Policy, specs: Collection[TierSpec]) -> Iterator[SsdSpec]:
    used = {spec.where for spec in specs}
    folders = [folder for model in policy.models for folder in ssd_folders(policy, model)]
    for folder in folders + leftovers(policy):
        if str(folder) not in used and (folder / "lock").is_file():
            yield SsdSpec(str(folder), sys.maxsize)


def _redis_specs(policy: Policy, model: ModelPolicy, memory_nbytes: int) -> Sequence[RedisSpec]:
    redis = policy.tiers.redis
    if redis.url is None:
        return []
    spec = RedisSpec(redis.url.reveal(), redis.timeout, redis.prefix, redis.url.host)
    return [spec] * model.engine.workers


def _redis_summary(policy: Policy) -> str:
    redis = policy.tiers.redis
    return "none" if redis.url is None else f"{redis.url.host}, keys {redis.prefix}*"


TIER_SECTIONS: Final[Mapping[str, TierSection]] = {
    "ram": TierSection("RAM", _ram_specs),
    "ssd": TierSection("SSD", _ssd_specs, _ssd_summary, _unused_folders),
    "redis": TierSection("Redis", _redis_specs, _redis_summary),
}
"""By the name of the kind, in the order in which engines read the tiers."""


def tiers_of_workers(
    policy: Policy, model: ModelPolicy, memory_nbytes: int
) -> list[tuple[TierSpec, ...]]:
    """The tiers of each worker of a model, in the order to read them."""
    tiers: list[tuple[TierSpec, ...]] = [()] * model.engine.workers
    for section in TIER_SECTIONS.values():
        for worker, spec in enumerate(section.specs(policy, model, memory_nbytes)):
            tiers[worker] += (spec,)
    return tiers
