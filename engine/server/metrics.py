"""Prometheus metrics, with vLLM's stems where it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.core.events import StepRecord
from engine.core.occupancy import Occupancy
from engine.core.prefix_cache import CacheUse
from engine.server.stats import EndedRequest

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 7.5, 10, 15, 30, 60, 120)
_PAUSE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10)


class _Occupancy(Collector):
    """Gauges read from the scheduler when asked for."""

    def __init__(self, occupancy: Callable[[], Occupancy]) -> None:
        self._occupancy = occupancy

    def collect(self) -> Iterable[Metric]:
        now = self._occupancy()
        yield GaugeMetricFamily(
            "evenflow_num_requests_running", "Requests being read or written.", now.num_running
        )
        yield GaugeMetricFamily("evenflow_num_requests_waiting", "Requests in the queue.", now.num_waiting)
        yield GaugeMetricFamily(
            "evenflow_waiting_prefill_tokens",
            "Uncached prompt tokens in the queue.",
            now.waiting_prefill_tokens,
        )
        yield GaugeMetricFamily(
            "evenflow_kv_tokens", "Tokens of KV promised to running requests.", now.kv_tokens
        )
        yield GaugeMetricFamily(
            "evenflow_kv_used_tokens", "Tokens of KV that hold something.", now.kv_used_tokens
        )
        yield from _prefix_cache(now.prefix_cache)


def _prefix_cache(use: CacheUse) -> Iterable[Metric]:
    """Counted by the scheduler, so they start again when the model is loaded again."""
    for name, text, value in (
        ("bytes", "Bytes of the checkpoints held.", use.num_bytes),
        ("max_bytes", "Bytes that checkpoints may take.", use.max_bytes),
        ("checkpoints", "Checkpoints held.", use.num_checkpoints),
    ):
        yield GaugeMetricFamily(f"evenflow_prefix_cache_{name}", text, value)
    for name, text, value in (
        ("queries", "Prompt tokens looked up.", use.queried_tokens),
        ("hits", "Prompt tokens found, and so not read again.", use.hit_tokens),
        ("query_requests", "Requests whose prompt was looked up.", use.num_queries),
        ("hit_requests", "Requests that found part of their prompt.", use.num_hits),
        ("evictions", "Checkpoints that went to make room.", use.num_evictions),
    ):
        yield CounterMetricFamily(f"evenflow_prefix_cache_{name}", text, value)


class Metrics:
    """Counts what the event loop sees. One instance a server."""

    def __init__(self, occupancy: Callable[[], Occupancy]) -> None:
        # They write a second line for every counter, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        registry.register(_Occupancy(occupancy))

        def histogram(
            name: str, text: str, buckets: Iterable[float], labels: Iterable[str] = ()
        ) -> Histogram:
            return Histogram(f"evenflow_{name}", text, labels, buckets=tuple(buckets), registry=registry)

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"evenflow_{name}", text, labels, registry=registry)

        self.generation = Gauge("evenflow_config_generation", "Config in force.", registry=registry)
        self.recoveries = counter("engine_recoveries", "Times the model was loaded again after a failure.")
        self._requests = counter("requests", "Requests by how they ended.", ("outcome",))
        self._refused = counter("requests_refused", "Requests turned away, by cause.", ("code",))
        self._prompt = counter("prompt_tokens", "Prompt tokens of requests that ended, cached ones included.")
        self._cached = counter("cached_prompt_tokens", "Prompt tokens that came from the prefix cache.")
        self._chunks = counter("prefill_chunks", "Chunks that prompts of requests that ended were read in.")
        self._causes = counter("worst_pauses", "Requests by what their worst pause was spent on.", ("cause",))
        self._generated = counter("generation_tokens", "Tokens written.")
        self._ttft = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _TTFT_BUCKETS
        )
        self._queue = histogram("request_queue_time_seconds", "From arrival to first reading.", _TTFT_BUCKETS)
        self._prefill = histogram(
            "request_prefill_time_seconds", "From first reading to first token.", _TTFT_BUCKETS
        )
        self._e2e = histogram("e2e_request_latency_seconds", "From arrival to the end.", _TTFT_BUCKETS)
        self._pause = histogram(
            "streaming_pause_seconds", "Worst pause between two tokens of a request.", _PAUSE_BUCKETS
        )
        self._itl = histogram(
            "inter_token_latency_seconds", "Between two tokens of a request.", _PAUSE_BUCKETS
        )
        steps = histogram(
            "step_duration_seconds",
            "From the end of the step before to the end of this one.",
            _STEP_BUCKETS,
            ("kind",),
        )
        # Bound once: looking a label up costs as much as counting.
        self._decode_step, self._prefill_step = steps.labels("decode"), steps.labels("prefill")

    def on_step(self, record: StepRecord, num_tokens: int) -> None:
        (self._prefill_step if record.prefill else self._decode_step).observe(record.duration_s)
        if num_tokens:
            self._generated.inc(num_tokens)

    def on_gap(self, gap_s: float) -> None:
        self._itl.observe(gap_s)

    def on_end(self, ended: EndedRequest) -> None:
        timeline = ended.timeline
        self._requests.labels(ended.outcome).inc()
        self._prompt.inc(ended.prompt_tokens)
        self._cached.inc(timeline.cached_tokens)
        self._chunks.inc(timeline.num_chunks)
        if timeline.worst_pause_cause:
            self._causes.labels(timeline.worst_pause_cause.kind.value).inc()
        for metric, value in (
            (self._ttft, timeline.ttft_s),
            (self._queue, timeline.queue_s),
            (self._prefill, timeline.prefill_s),
            (self._pause, timeline.worst_pause_s),
        ):
            if value is not None:
                metric.observe(value)
        if timeline.ended_at_s is not None:
            self._e2e.observe(timeline.ended_at_s - timeline.arrived_at_s)

    def on_refusal(self, code: str) -> None:
        self._requests.labels("refused").inc()
        self._refused.labels(code).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
