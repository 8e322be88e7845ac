"""The worker's log: structured lines on standard error, each with a stable `action`."""

import sys
from typing import Any

import structlog

log: Any = structlog.get_logger("worker")


def configure() -> None:
    """Send the log to standard error, unless the program has decided otherwise already."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "action", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
