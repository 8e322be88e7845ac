"""The thread of a service that delivers webhooks; several share one database without sending twice."""

import threading
from typing import Final

import structlog
from sqlalchemy import Engine

from app.settings import Settings
from app.sharing.webhook import deliver_due

LOOK_SECONDS: Final = 2.0

log = structlog.get_logger(__name__)


class Dispatcher(threading.Thread):
    """Checks every two seconds for due deliveries; `start()` with the service, `stop()` when it ends."""

    def __init__(self, engine: Engine, settings: Settings, *, every: float = LOOK_SECONDS) -> None:
        super().__init__(name="webhook-dispatcher", daemon=True)
        self._engine, self._settings, self._every = engine, settings, every
        self._stopped = threading.Event()

    def run(self) -> None:
        """Deliver until stopped; a temporarily unavailable database is not fatal."""
        while not self._stopped.wait(self._every):
            try:
                deliver_due(self._engine, self._settings)
            except Exception as error:
                log.warning("cannot deliver webhooks", action="webhook-failed", error=type(error).__name__)

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread, waiting at most `timeout` seconds for an active attempt, which may be repeated later."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout)
