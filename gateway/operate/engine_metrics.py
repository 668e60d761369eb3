"""The numbers of engines as metrics: those of one family are one metric with labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from engine.messages import EngineStats
from engine.stats import engine_numbers
from engine.store.kinds import TIER_KINDS

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

WORKER: Final = ("model", "worker")
"""The labels that name an engine."""


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """A metric as the reference page lists it: `name` as scraped."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def engine_metrics() -> Mapping[MetricDescription, Mapping[str, tuple[str, ...]]]:
    """Every metric an engine feeds: keys of `EngineStats` -> values of the labels after `model` and
    `worker`. Each key is in exactly one."""
    metrics: dict[MetricDescription, dict[str, tuple[str, ...]]] = {}
    for number in engine_numbers():
        family = number.family
        metric = MetricDescription(
            f"pcg_{family.name}", number.kind, (*WORKER, *family.labels), family.help
        )
        metrics.setdefault(metric, {})[number.key] = number.labels
    return metrics


def known_values(stats: EngineStats) -> dict[str, float]:
    """Counters and gauges by key, without those of tiers that the engine does not have: those are
    not 0, but unknown."""
    missing = tuple(
        f"tier_{tier}_" for tier in TIER_KINDS if stats.gauges.get(f"tier_{tier}_up", 0) < 0
    )
    return {
        key: value
        for key, value in (stats.counters | stats.gauges).items()
        if not key.startswith(missing)
    }
