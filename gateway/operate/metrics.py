"""Everything `/metrics` shows, in a registry of its own.

Fed with finished records and engine snapshots; measures nothing.

Label values come from closed sets (routes, error classes, TTL classes, causes), so the number of
series is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.messages import EngineStats
from gateway.bill.headers import Bill, ttl_name
from gateway.bill.record import Record
from gateway.operate.engine_metrics import WORKER, MetricDescription, engine_metrics, known_values
from gateway.upstream.reported import ReportedBill

__all__ = ["CONTENT_TYPE", "MetricDescription", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5)

_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """All metrics of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown = CollectorRegistry()
        self._shown.register(_WithoutCreated(self.registry))
        self._described: list[MetricDescription] = []
        self._requests = self._counter(
            "pcg_requests",
            "Requests answered, by outcome.",
            "api",
            "route",
            "status_class",
            "error_type",
        )
        self._prompt = self._counter(
            "pcg_prompt_tokens", "Prompt tokens as billed; the kinds add up to the prompt.", "kind"
        )
        self._output = self._counter("pcg_output_tokens", "Tokens generated and billed.")
        self._lookups = self._counter(
            "pcg_prefix_lookup", "Requests by what the prefix cache did for them.", "result"
        )
        self._skipped = self._counter(
            "pcg_prefill_skipped_tokens", "Prompt tokens whose prefill was really skipped."
        )
        self._broken = self._counter(
            "pcg_promise_broken_tokens",
            "Tokens of live entries that could not be read after all.",
            "cause",
        )
        self._cost = self._counter("pcg_cost_usd", "What requests cost, in USD.", "kind")
        self._saved = self._counter(
            "pcg_cost_saved_usd", "What cache reads saved against input price, in USD."
        )
        self._premium = self._counter(
            "pcg_cost_premium_usd", "What cache writes cost beyond input price, in USD."
        )
        self._responses = self._counter(
            "pcg_response_lookup", "Requests by what the cache of whole answers did.", "result"
        )
        self._response_saved = self._counter(
            "pcg_response_saved_usd", "What answers given again cost when they were made, in USD."
        )
        self._ttft = self._histogram(
            "pcg_ttft_seconds", "From the request's arrival to its first text.", _SECONDS, "cache"
        )
        self._overhead = self._histogram(
            "pcg_overhead_seconds",
            "Time spent on a request besides computing tokens.",
            _SHORT_SECONDS,
            "phase",
        )
        self._changed = self._counter(
            "pcg_changed_requests",
            "Requests changed on the client's behalf, by warning.",
            "warning",
        )
        self._usage_notes = self._counter(
            "pcg_usage_notes",
            "Requests whose bill rests on numbers that an upstream did not tell, by what was "
            "missing.",
            "note",
        )
        self._upstream = self._counter(
            "pcg_upstream_requests",
            "Requests passed to an upstream, by outcome.",
            "upstream",
            "status_class",
            "error_type",
        )
        self._inflight = self._gauge("pcg_inflight", "Requests being served now.")
        self._lag = self._histogram(
            "pcg_event_loop_lag_seconds",
            "How late the gateway's event loop woke up, measured twenty times a second: what "
            "every request waits at least.",
            _LAG_SECONDS,
        )
        self._response_bytes = self._gauge(
            "pcg_response_bytes", "Bytes of answers that may be given again."
        )
        self._restarts = self._counter(
            "pcg_worker_restarts", "Engine workers started to replace one that died.", *WORKER
        )
        self._up = self._gauge("pcg_worker_up", "Whether the engine worker is serving.", *WORKER)
        self._routed = self._counter(
            "pcg_routed",
            "Requests handed to one of several workers, and why that one: held (it has some of "
            "the prompt), spilled (others "
            "have, and are too busy), like (requests like it went there), new, passed (another "
            "one refused).",
            "model",
            "reason",
        )
        self._engine = _EngineCollector()
        self.registry.register(self._engine)
        self._described += engine_metrics()

    def describe(self) -> tuple[MetricDescription, ...]:
        """Every metric this gateway can show, engine included, in the order of `/metrics`."""
        return tuple(self._described)

    def scrape(
        self,
        engines: Mapping[tuple[str, int], EngineStats | None],
        num_inflight: int,
        response_nbytes: int = 0,
    ) -> bytes:
        """The text exposition format. `engines` holds the numbers of each worker, by its model and
        number; None: it is not serving."""
        self._inflight.set(num_inflight)
        self._response_bytes.set(response_nbytes)
        for (model, number), stats in engines.items():
            self._up.labels(model, number).set(stats is not None)
            self._restarts.labels(model, number)
        self._engine.latest = engines
        return generate_latest(self._shown)

    def lagged(self, seconds: float) -> None:
        """The event loop was late by so much."""
        self._lag.observe(seconds)

    def restarted(self, model: str, worker: int) -> None:
        """The process of a worker was replaced."""
        self._restarts.labels(model, worker).inc()

    def routed(self, model: str, reason: str) -> None:
        """One of several workers was handed a request."""
        self._routed.labels(model, reason).inc()

    def add(self, record: Record) -> None:
        """Count one request, once, when it is over."""
        self._requests.labels(
            record.wire, record.route, f"{record.status // 100}xx", record.error or ""
        ).inc()
        for phase, seconds in record.phases.items():
            self._overhead.labels(phase).observe(seconds)
        for warning in record.warnings:
            self._changed.labels(warning).inc()
        if record.upstream is not None:
            self._upstream.labels(
                record.upstream, f"{record.status // 100}xx", record.error or ""
            ).inc()
        for note in record.notes:
            self._usage_notes.labels(note).inc()
        bill = record.bill
        word = "unknown" if bill is None else bill.word
        if record.ttft_s is not None:
            self._ttft.labels(word).observe(record.ttft_s)
        if isinstance(bill, Bill) and bill.lookup is not None:
            self._responses.labels(bill.lookup.outcome).inc()
        if isinstance(bill, Bill) and bill.replayed:
            self._response_saved.inc(float(bill.charge.saved))
        elif bill is not None:
            self._lookups.labels(word.replace("-", "_")).inc()
            self._add_bill(bill)

    def _add_bill(self, bill: Bill | ReportedBill) -> None:
        usage, charge = bill.usage, bill.charge
        if isinstance(bill, Bill):
            self._skipped.inc(bill.report.skipped)
            if bill.report.broken_tokens:
                self._broken.labels(bill.report.miss.cause if bill.report.miss else "unknown").inc(
                    bill.report.broken_tokens
                )
        self._prompt.labels("read").inc(usage.cache_read)
        self._prompt.labels(
            "uncached" if isinstance(bill, Bill) or bill.cache_known else "unknown"
        ).inc(usage.input)
        for ttl_s, num_tokens in usage.cache_write:
            self._prompt.labels(f"write_{ttl_name(ttl_s, bill.rules)}").inc(num_tokens)
        self._output.inc(usage.output)
        for kind in ("input", "cache_read", "cache_write", "output"):
            self._cost.labels(kind).inc(float(getattr(charge, kind)))
        (self._saved if charge.saved >= 0 else self._premium).inc(float(abs(charge.saved)))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._described.append(MetricDescription(f"{name}_total", "counter", labels, text))
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self._described.append(MetricDescription(name, "gauge", labels, text))
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        self._described.append(MetricDescription(name, "histogram", labels, text))
        return Histogram(name, text, labels, registry=self.registry, buckets=tuple(buckets))


class _WithoutCreated:
    """A registry's metrics without the time each series began, which would be half of all lines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            yield family


class _EngineCollector:
    """Shows the latest snapshots as metrics."""

    def __init__(self) -> None:
        self.latest: Mapping[tuple[str, int], EngineStats | None] = {}

    def describe(self) -> Iterator[Metric]:
        return map(_family, engine_metrics())

    def collect(self) -> Iterator[Metric]:
        for metric, sources in engine_metrics().items():
            family = _family(metric)
            for (model, number), stats in self.latest.items():
                values = {} if stats is None else known_values(stats)
                for key, labels in sources.items():
                    if key in values:
                        family.add_metric((model, str(number), *labels), values[key])
            yield family


def _family(metric: MetricDescription) -> CounterMetricFamily | GaugeMetricFamily:
    """An engine's metric without samples yet."""
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
