"""Exit codes, and errors that carry one."""

import sys
from enum import IntEnum
from typing import Any

from app.runs.states import Reason, State
from trainer.contract.result import Verdict


class Exit(IntEnum):
    """The meaning of a command's exit codes."""

    OK = 0
    NOT_PASSED = 1
    """Verdict fail or inconclusive, or a check command found faults."""
    USAGE = 2
    """Also: refused parameters."""
    FAILED = 3
    """A run failed, or the command could not do its work."""
    CANCELLED = 4
    LOST = 5
    """State lost, or reason hang or time_limit."""
    NOT_FOUND = 6
    UNREACHABLE = 7
    INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot continue; reported on standard error, or as JSON with `--json`."""

    def __init__(self, code: Exit, message: str, document: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.document = document or problem(code, message)


def problem(code: Exit, message: str) -> dict[str, Any]:
    """Return an error of the command itself in the form of the service's errors."""
    name = code.name.lower()
    return {
        "type": f"urn:ddp-audit:problem:{name}",
        "title": name.replace("_", " ").capitalize(),
        "detail": message,
        "code": name,
    }


def of_database(error: BaseException) -> str:
    """Return a message if `error` says that the database cannot be used now, else nothing."""
    if "app.db" not in sys.modules:  # a command without a database does not wait for the import
        return ""
    from app.db import as_message

    return as_message(error) if isinstance(error, Exception) else ""


def of_run(run: dict[str, Any]) -> Exit:
    """Return the exit code for an ended run."""
    state = State(run["state"])
    if state is State.SUCCEEDED:
        return Exit.OK if run["verdict"] == Verdict.PASS else Exit.NOT_PASSED
    if state is State.CANCELLED:
        return Exit.CANCELLED
    if state is State.LOST or run["reason"] in {Reason.HANG, Reason.TIME_LIMIT}:
        return Exit.LOST
    return Exit.FAILED


def of_status(status: int) -> Exit:
    """Return the exit code for a problem document of the service."""
    if status == 404:
        return Exit.NOT_FOUND
    return Exit.USAGE if 400 <= status < 500 else Exit.FAILED
