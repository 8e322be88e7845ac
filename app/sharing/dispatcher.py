"""The thread that delivers webhooks beside a service; several of them share one database without sending twice."""

import threading
from typing import Final

import structlog
from sqlalchemy import Engine

from app.settings import Settings
from app.sharing.webhook import deliver_due

LOOK_SECONDS: Final = 2.0

log = structlog.get_logger(__name__)


class Dispatcher(threading.Thread):
    """Looks every two seconds for what is due; `start()` with the service, `stop()` when it ends."""

    def __init__(self, engine: Engine, settings: Settings, *, every: float = LOOK_SECONDS) -> None:
        super().__init__(name="webhook-dispatcher", daemon=True)
        self._engine, self._settings, self._every = engine, settings, every
        self._stopped = threading.Event()

    def run(self) -> None:
        """Deliver until stopped; a database that is away for a moment ends nothing."""
        while not self._stopped.wait(self._every):
            try:
                deliver_due(self._engine, self._settings)
            except Exception as error:
                log.warning("cannot deliver webhooks", action="webhook-failed", error=type(error).__name__)

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread, waiting at most `timeout` seconds for an attempt under way: it is repeated by the next."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout)
