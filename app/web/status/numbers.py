"""Numbers about the service for Prometheus: requests by route, runs by state, workers, open streams."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine, func
from sqlmodel import col, select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.db import read_session
from app.runs.models import Run
from app.runs.workers import live_workers
from app.web.http.problems import BASE, route_path
from app.web.streams import Live

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Monitor:
    """One application's numbers, in a registry of its own."""

    def __init__(self, engine: Engine, live: Live) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Stock(engine, live))
        labels = ["method", "route", "status"]
        self.requests = Counter("ddp_audit_http_requests", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "ddp_audit_http_request_seconds",
            "Time to the begin of the answer.",
            ["method", "route"],
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
        )


class Stock(Collector):
    """What is in the database and in memory, read when asked for."""

    def __init__(self, engine: Engine, live: Live) -> None:
        self._engine, self._live = engine, live

    def describe(self) -> list[Metric]:
        """Return nothing: a registry must not read the database when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of this moment."""
        with read_session(self._engine) as session:
            query = select(Run.kind, Run.state, func.count()).where(col(Run.deleting).is_(False))
            counts = session.exec(query.group_by(col(Run.kind), col(Run.state))).all()
            workers = len(live_workers(session))
        runs = GaugeMetricFamily("ddp_audit_runs", "Runs by kind and state.", labels=["kind", "state"])
        for kind, state, count in counts:
            runs.add_metric([kind, state], count)
        yield runs
        yield GaugeMetricFamily("ddp_audit_workers", "Workers with a fresh heartbeat.", value=workers)
        yield GaugeMetricFamily("ddp_audit_streams", "Open streams of runs.", value=self._live.streams)


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
    # A route knows its own router's prefix, not the base the routers are mounted under.
    below = route_path(scope).startswith(f"{BASE}/") and not pattern.startswith((BASE, "other"))
    return f"{BASE}{pattern}" if below else pattern
