"""Log lines of code under test go to standard error, and only those that warn."""

import logging
import sys

from app.logs import configure
from app.settings import Settings


def quiet_logs() -> None:
    """Keep log lines out of standard output, which commands keep for their answers."""
    configure(Settings(host="127.0.0.1", log_format="text"), sys.__stderr__, level=logging.WARNING)
