"""The marker that identifies the processes of an attempt; standard library only."""

from typing import Final

MARKER: Final = "DDP_AUDIT_MARKER"
"""Environment variable set for all processes of an attempt."""


def marker_of(database_id: str, run_id: int, stage: str, attempt: int) -> str:
    """Return the value of `MARKER` for one attempt, unique among all attempts of all databases."""
    return f"{database_id}:{run_id}:{stage}:{attempt}"
