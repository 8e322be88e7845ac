"""Numbers about disk and webhook for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine, func, select
from sqlmodel import col

from app.db import read_session
from app.runs.derived import Delivery, RunFacts
from app.settings import Settings
from app.sharing.deliveries import STATUSES
from app.storage.disk import free_bytes


class StorageNumbers(Collector):
    """Free disk, bytes of measured runs, and deliveries by status, read when asked for."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine, self._settings = engine, settings

    def describe(self) -> list[Metric]:
        """Return nothing: a registry must not read the database when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of this moment."""
        free = GaugeMetricFamily("ddp_audit_free_bytes", "Free disk by directory.", labels=["directory"])
        for name, amount in free_bytes(self._settings).items():
            free.add_metric([name], amount)
        yield free
        with read_session(self._engine) as session:
            held = session.scalar(select(func.sum(col(RunFacts.bytes)))) or 0
            rows = session.execute(select(col(Delivery.status), func.count()).group_by(col(Delivery.status))).all()
            counts = {str(row[0]): int(row[1]) for row in rows}
        yield GaugeMetricFamily("ddp_audit_run_bytes", "Bytes of ended runs, as last measured.", value=held)
        told = GaugeMetricFamily("ddp_audit_webhook_deliveries", "Webhook deliveries by status.", labels=["status"])
        for status in STATUSES:
            told.add_metric([status], counts.get(status, 0))
        yield told
