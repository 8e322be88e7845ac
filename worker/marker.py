"""The mark by which processes of an attempt are told from all others; standard library only."""

from typing import Final

MARKER: Final = "DDP_AUDIT_MARKER"
"""Environment variable of everything an attempt starts."""


def marker_of(database_id: str, run_id: int, stage: str, attempt: int) -> str:
    """Return the value of `MARKER` for one attempt: no other attempt of any database has the same."""
    return f"{database_id}:{run_id}:{stage}:{attempt}"
