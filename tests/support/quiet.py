"""Log lines of code under test: only warnings, on standard error."""

import logging
import sys

from app.logs import configure
from app.settings import Settings


def quiet_logs() -> None:
    """Keep log lines out of standard output, which commands use for their answers."""
    configure(Settings.model_construct(log_format="text"), sys.__stderr__, level=logging.WARNING)
