"""How an engine's counters and gauges are named on `/metrics`. Data; reads nothing.

What belongs together is one metric with a label; everything else keeps its name from
`engine/stats.py` behind `pcg_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from engine.messages import EngineStats
from engine.stats import COUNTERS, GAUGES, TIERS

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

WORKER: Final = ("model", "worker")
"""The labels that name an engine."""


@dataclass(frozen=True, slots=True)
class Described:
    """A metric as the reference page lists it: `name` as scraped."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class EngineMetric:
    """One metric. `sources`: keys of `EngineStats` -> values of the labels after `model` and
    `worker`."""

    described: Described
    sources: Mapping[str, tuple[str, ...]]

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """Without samples yet."""
        kind = CounterMetricFamily if self.described.kind == "counter" else GaugeMetricFamily
        return kind(self.described.name, self.described.help, labels=self.described.labels)


def _by_tier(name: str, kind: Kind, label: str, text: str, key: str) -> EngineMetric:
    """One metric with a series per tier below the device; `key` has {} in the place of the tier."""
    return EngineMetric(
        Described(name, kind, (*WORKER, label), text), {key.format(tier): (tier,) for tier in TIERS}
    )


_TIERS: Final = (
    EngineMetric(
        Described(
            "pcg_kv_bytes",
            "gauge",
            (*WORKER, "tier"),
            "Bytes held, by tier. 0 for a Redis: it is shared.",
        ),
        {"cache_device_nbytes": ("device",)} | {f"tier_{tier}_nbytes": (tier,) for tier in TIERS},
    ),
    _by_tier(
        "pcg_kv_pinned_bytes",
        "gauge",
        "tier",
        "Bytes of a tier's objects that are pinned.",
        "tier_{}_pinned_nbytes",
    ),
    _by_tier("pcg_kv_objects", "gauge", "tier", "Objects held by a tier.", "tier_{}_items"),
    _by_tier(
        "pcg_kv_queued_bytes",
        "gauge",
        "tier",
        "Bytes waiting to be written to a tier.",
        "tier_{}_queued_nbytes",
    ),
    _by_tier(
        "pcg_kv_read_bytes_total",
        "counter",
        "tier",
        "Bytes of KV read from a tier.",
        "tier_{}_read_nbytes_total",
    ),
    _by_tier(
        "pcg_kv_reads_total", "counter", "tier", "Objects read from a tier.", "tier_{}_hits_total"
    ),
    _by_tier(
        "pcg_kv_load_seconds_total",
        "counter",
        "tier",
        "Seconds in those reads.",
        "tier_{}_read_seconds_total",
    ),
    _by_tier(
        "pcg_kv_written_bytes_total",
        "counter",
        "tier",
        "Bytes written to a tier.",
        "tier_{}_written_nbytes_total",
    ),
    EngineMetric(
        Described(
            "pcg_kv_put_drops_total",
            "counter",
            (*WORKER, "tier", "reason"),
            "Objects that were not stored. store: a tier did not take it; queue: every queue was "
            "full (tier all).",
        ),
        {f"tier_{tier}_dropped_writes_total": (tier, "store") for tier in TIERS}
        | {"cache_dropped_writes_total": ("all", "queue")},
    ),
    _by_tier(
        "pcg_kv_corrupt_total",
        "counter",
        "tier",
        "Objects that came back damaged, or another tenant's or model's. All were treated as "
        "misses.",
        "tier_{}_corrupt_total",
    ),
    _by_tier(
        "pcg_kv_late_total",
        "counter",
        "tier",
        "Requests that stopped waiting for a tier.",
        "tier_{}_late_total",
    ),
    _by_tier(
        "pcg_store_up",
        "gauge",
        "store",
        "Whether a tier works: it answers, and takes what it is given.",
        "tier_{}_up",
    ),
    _by_tier(
        "pcg_store_errors_total",
        "counter",
        "store",
        "Calls of a tier that failed.",
        "tier_{}_errors_total",
    ),
    _by_tier(
        "pcg_store_read_bytes_per_second",
        "gauge",
        "store",
        "Measured, a running average.",
        "tier_{}_bandwidth_nbytes_per_s",
    ),
    _by_tier(
        "pcg_store_latency_seconds",
        "gauge",
        "store",
        "Until a tier says what it has, a running average.",
        "tier_{}_latency_s",
    ),
    EngineMetric(
        Described(
            "pcg_tier_wait_seconds_total",
            "counter",
            WORKER,
            "Seconds that requests waited for a tier in vain: what they waited for was late, gone "
            "or damaged.",
        ),
        {"cache_wasted_wait_seconds_total": ()},
    ),
    EngineMetric(
        Described(
            "pcg_tier_waits_total",
            "counter",
            (*WORKER, "length"),
            "Requests that waited in vain; long: 0.3 s or more.",
        ),
        {"cache_wasted_waits_total": ("any",), "cache_long_waits_total": ("long",)},
    ),
)

_JOINED: Final = (
    *_TIERS,
    EngineMetric(
        Described(
            "pcg_kv_entries",
            "gauge",
            WORKER,
            "Live entries: prefixes promised to be cached until their time.",
        ),
        {"cache_entries": ()},
    ),
    EngineMetric(
        Described(
            "pcg_kv_evictions_total",
            "counter",
            (*WORKER, "reason"),
            "Blocks of KV given up, by reason.",
        ),
        {
            "cache_expired_blocks_total": ("ttl",),
            "cache_evicted_blocks_total": ("room",),
            "cache_flushed_blocks_total": ("flush",),
        },
    ),
)


def engine_metrics() -> tuple[EngineMetric, ...]:
    """Every metric an engine feeds; each of its counters and gauges is in exactly one."""
    joined = {key for metric in _JOINED for key in metric.sources}
    counters = (_plain(key, "counter", text) for key, text in COUNTERS.items() if key not in joined)
    gauges = (_plain(key, "gauge", text) for key, text in GAUGES.items() if key not in joined)
    return (*_JOINED, *counters, *gauges)


def known_values(stats: EngineStats) -> dict[str, float]:
    """Counters and gauges by name, without those of tiers that the engine does not have: those are
    not 0, but unknown."""
    missing = tuple(f"tier_{tier}_" for tier in TIERS if stats.gauges.get(f"tier_{tier}_up", 0) < 0)
    return {
        name: value
        for name, value in (stats.counters | stats.gauges).items()
        if not name.startswith(missing)
    }


def _plain(key: str, kind: Kind, text: str) -> EngineMetric:
    return EngineMetric(Described(f"pcg_{key}", kind, WORKER, f"{text}."), {key: ()})
