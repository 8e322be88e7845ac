"""Log lines of code under test go to standard error, and only those that warn."""

import logging
import sys

import structlog


def quiet_logs() -> None:
    """Keep log lines out of standard output, which commands keep for their answers."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
    )
