"""Creates the executor that `DDP_AUDIT_EXECUTOR` names."""

from typing import TYPE_CHECKING

from app.settings import SLURM, Settings
from worker.executors.base import Executor

if TYPE_CHECKING:
    from worker.executors.local.warm import Starter


def make_executor(settings: Settings, starter: "Starter | None" = None) -> Executor:
    """Return a new executor of the configured kind; only `local` uses a `starter`."""
    if settings.executor == SLURM:
        from worker.executors.slurm.executor import SlurmExecutor

        return SlurmExecutor(settings)
    from worker.executors.local.executor import LocalExecutor

    return LocalExecutor(settings, starter=starter)
