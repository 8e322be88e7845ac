"""Numbers for Prometheus: requests by route, runs by state, workers, open streams, disk, deliveries of the webhook."""

import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.db import Engine, read_session
from app.runs.store import count_runs
from app.runs.workers import live_workers
from app.settings import Settings
from app.sharing.deliveries import count_deliveries
from app.storage.disk import free_bytes
from app.storage.usage import measured_bytes
from app.web.http.problems import BASE, route_path
from app.web.streams import Live

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Monitor:
    """The numbers of one application, in its own registry."""

    def __init__(self, engine: Engine, settings: Settings, live: Live) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Stock(engine, settings, live))
        labels = ["method", "route", "status"]
        self.requests = Counter("ddp_audit_http_requests", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "ddp_audit_http_request_seconds",
            "Time to the first byte of the answer.",
            ["method", "route"],
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
        )


class Stock(Collector):
    """Numbers from the database, memory and disk, read on request."""

    def __init__(self, engine: Engine, settings: Settings, live: Live) -> None:
        self._engine, self._settings, self._live = engine, settings, live

    def describe(self) -> list[Metric]:
        """Return nothing: a registry must not read the database when it is created."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current numbers."""
        with read_session(self._engine) as session:
            runs, workers = count_runs(session), len(live_workers(session))
            held, deliveries = measured_bytes(session), count_deliveries(session)
        yield _gauge(
            "runs", "Runs by kind and state.", [((kind, state), n) for kind, state, n in runs], "kind", "state"
        )
        yield _gauge("workers", "Workers with a fresh heartbeat.", [((), workers)])
        yield _gauge("streams", "Open streams of runs.", [((), self._live.streams)])
        free = [((name,), amount) for name, amount in free_bytes(self._settings).items()]
        yield _gauge("free_bytes", "Free disk by directory.", free, "directory")
        yield _gauge("run_bytes", "Bytes of ended runs, as last measured.", [((), held)])
        by_status = [((status,), count) for status, count in deliveries.items()]
        yield _gauge("webhook_deliveries", "Webhook deliveries by status.", by_status, "status")


def _gauge(name: str, text: str, values: Iterable[tuple[Sequence[str], float]], *labels: str) -> Metric:
    """Return a gauge with a value for every combination of labels."""
    gauge = GaugeMetricFamily(f"ddp_audit_{name}", text, labels=labels)
    for combination, value in values:
        gauge.add_metric(combination, value)
    return gauge


class Measured:
    """ASGI middleware that counts and times requests by the route's pattern, never by the path itself."""

    def __init__(self, app: ASGIApp, *, monitor: Monitor) -> None:
        self._app, self._monitor = app, monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        method = scope["method"] if scope["method"] in METHODS else "other"

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = _pattern(scope)
                self._monitor.requests.labels(method, route, message["status"]).inc()
                self._monitor.seconds.labels(method, route).observe(time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, send_measured)


def _pattern(scope: Scope) -> str:
    pattern = str(getattr(scope.get("route"), "path", None) or "other")
    # A route knows its own router's prefix, but not the base path of the mounted routers.
    below = route_path(scope).startswith(f"{BASE}/") and not pattern.startswith((BASE, "other"))
    return f"{BASE}{pattern}" if below else pattern
