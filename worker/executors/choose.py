"""Creates the executor that `DDP_AUDIT_EXECUTOR` names."""

from app.settings import SLURM, Settings
from worker.executors.base import Executor


def make_executor(settings: Settings) -> Executor:
    """Return a new executor of the configured kind."""
    if settings.executor == SLURM:
        from worker.executors.slurm.executor import SlurmExecutor

        return SlurmExecutor(settings)
    from worker.executors.local.executor import LocalExecutor

    return LocalExecutor(settings)
