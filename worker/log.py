"""The worker's logger: each line has a stable `action`; the program that starts the worker configures `app.logs`."""

from typing import Any

import structlog

log: Any = structlog.get_logger("worker")
