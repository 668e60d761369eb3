"""How an engine's counters and gauges are named on `/metrics`. Data; reads nothing.

What belongs together is one metric with a label; everything else keeps its name from `engine/stats.py` behind `pcg_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from engine.stats import COUNTERS, GAUGES

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Described:
    """A metric as the reference page lists it: `name` as scraped."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class EngineMetric:
    """One metric. `sources`: keys of `EngineStats` -> values of the labels after `model`."""

    described: Described
    sources: Mapping[str, tuple[str, ...]]

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """Without samples yet."""
        kind = CounterMetricFamily if self.described.kind == "counter" else GaugeMetricFamily
        return kind(self.described.name, self.described.help, labels=self.described.labels)


_JOINED: Final = (
    EngineMetric(
        Described("pcg_kv_bytes", "gauge", ("model", "tier"), "Bytes of KV held, by tier."),
        {"cache_device_nbytes": ("device",), "cache_ram_nbytes": ("ram",)},
    ),
    EngineMetric(
        Described("pcg_kv_entries", "gauge", ("model",), "Live entries: prefixes promised to be cached until their time."),
        {"cache_entries": ()},
    ),
    EngineMetric(
        Described("pcg_kv_evictions_total", "counter", ("model", "reason"), "Blocks of KV given up, by reason."),
        {
            "cache_expired_blocks_total": ("ttl",),
            "cache_evicted_blocks_total": ("room",),
            "cache_flushed_blocks_total": ("flush",),
            "cache_lost_blocks_total": ("lost",),
        },
    ),
)


def engine_metrics() -> tuple[EngineMetric, ...]:
    """Every metric an engine feeds; each of its counters and gauges is in exactly one."""
    joined = {key for metric in _JOINED for key in metric.sources}
    counters = (_plain(key, "counter", text) for key, text in COUNTERS.items() if key not in joined)
    gauges = (_plain(key, "gauge", text) for key, text in GAUGES.items() if key not in joined)
    return (*_JOINED, *counters, *gauges)


def _plain(key: str, kind: Kind, text: str) -> EngineMetric:
    return EngineMetric(Described(f"pcg_{key}", kind, ("model",), f"{text}."), {key: ()})
