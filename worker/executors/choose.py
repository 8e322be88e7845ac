"""Creates the executor that `DDP_AUDIT_EXECUTOR` names."""

from app.settings import Settings
from worker.executors.base import Executor


def make_executor(settings: Settings) -> Executor:
    """Return a new executor of the configured kind."""
    from worker.executors.local.executor import LocalExecutor

    return LocalExecutor(settings)
