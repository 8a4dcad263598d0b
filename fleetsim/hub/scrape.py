"""``GET /metrics``: what the hub has counted, and how things stand at this moment, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.requests import Request
from starlette.responses import Response

from fleetsim.hub.hub import Hub
from fleetsim.model.text import one_line

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"


class MetricsEndpoint:
    """The endpoint, and what it shows: one hub's figures."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    async def metrics(self, request: Request) -> Response:
        """The figures of this moment, in OpenMetrics for who asks for it and else in Prometheus's own text."""
        await self._hub.metrics.catch_up()
        kinds = {kind.partition(";")[0].strip() for kind in request.headers.get("accept", "").lower().split(",")}
        headers = {"Cache-Control": "no-store"}
        if OPENMETRICS in kinds:
            text = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return Response(text, media_type=openmetrics.CONTENT_TYPE_LATEST, headers=headers)
        return Response(generate_latest(self._registry), media_type=TEXT, headers=headers)

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are not looked for before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every figure. When a counter was made is left out: it would be a second series beside each."""
        for metric in self._hub.metrics.registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        yield from self._agents()
        yield from self._inbox()
        yield from self._ceremonies()
        yield CounterMetricFamily(
            "fleetsim_events_dropped", "Events that a slow reader did not get.", self._hub.events.dropped
        )
        unread = "Recorded events that the slowest reader has yet to take."
        yield GaugeMetricFamily("fleetsim_events_unread", unread, self._hub.events.unread)
        build = GaugeMetricFamily("fleetsim_build_info", "The version that runs.", labels=["version"])
        build.add_metric([version("fleetsim")], 1)
        yield build

    def _agents(self) -> Iterator[Metric]:
        hub = self._hub
        now, views = hub.runtime.clock.now(), [view for view in hub.broker.views() if view.entry.enabled]
        flying = Counter[str]()
        for (agent, _), count in hub.tracker.open_tracks.places().items():
            flying[agent] += count
        flying.update(dict.fromkeys((view.entry.name for view in views), 0))
        yield _gauge("tasks_in_flight", "Requests without an end.", "agent", flying)
        up = {view.entry.name: view.reachable for view in views if view.reachable is not None}
        words = GaugeMetricFamily("fleetsim_agent_health", "1 for the agent's health word.", labels=["agent", "health"])
        for name, word in hub.health_words().items():
            words.add_metric([one_line(name, 64), word.value], 1)
        yield words
        yield _gauge("agent_up", "1 if the agent's card could be read last, else 0.", "agent", up)
        ages = {view.entry.name: (now - view.fetched_at).total_seconds() for view in views if view.fetched_at}
        yield _gauge("agent_card_age_seconds", "Since the agent's card was read.", "agent", ages)
        shut = {view.entry.name: hub.limiter.refuses(view.entry.name) for view in views}
        yield _gauge("breaker_open", "1 while the agent is left alone after failed calls.", "agent", shut)

    def _inbox(self) -> Iterator[Metric]:
        questions = self._hub.tracker.questions()
        waiting = Counter(dict.fromkeys((entry.name for entry in self._hub.config.enabled), 0))
        waiting.update(question.agent for question in questions)
        yield _gauge("inbox_waiting", "Open questions.", "agent", waiting)
        now = self._hub.runtime.clock.now()
        oldest = max(((now - question.asked_at).total_seconds() for question in questions), default=0.0)
        yield GaugeMetricFamily("fleetsim_inbox_oldest_seconds", "How long the oldest of them has waited.", oldest)

    def _ceremonies(self) -> Iterator[Metric]:
        rows = self._hub.scheduler.rows() if self._hub.scheduler else ()
        due = {r.ceremony.ceremony_id: r.next_at.timestamp() for r in rows if r.next_at and r.ceremony.schedule}
        yield _gauge("ceremony_next_fire_timestamp_seconds", "When it fires next.", "ceremony", due)


def _gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(f"fleetsim_{name}", meaning, labels=[label])
    for of, value in values.items():
        gauge.add_metric([one_line(of, 64)], value)
    return gauge
