"""The environment of child processes: no secrets, and no variables that another launcher set for its own ranks."""

from collections.abc import Mapping
from typing import Final

SECRETS: Final = (
    "DDP_AUDIT_TOKEN",
    "DDP_AUDIT_VIEWER_TOKEN",
    "DDP_AUDIT_WEBHOOK_URL",
    "DDP_AUDIT_WEBHOOK_SECRET",
    "DDP_AUDIT_DATABASE_URL",
)
"""Hidden from jobs and from the child that decodes pictures; a database address may contain a password."""
RANKS: Final = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "DDP_AUDIT_MARKER",
        "DDP_AUDIT_PARENT_PID",
    }
)
"""Variables by which torchrun and similar launchers describe the group to a rank."""
LAUNCHERS: Final = (
    "TORCHELASTIC_",
    "PET_",
    "ACCELERATE_",
    "SLURM_",
    "SRUN_",
    "SBATCH_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "MPIEXEC_",
    "MPI_LOCAL",
    "MV2_COMM_",
    "HYDRA_",
    "PALS_",
    "JSM_",
    "FLUX_",
)
"""Prefixes of variables that launchers set for their processes, including torchrun's own options (PET_)."""


def for_children(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child. Secrets are matched case-insensitively, as settings are."""
    return {
        name: value
        for name, value in environment.items()
        if name.upper() not in SECRETS and name not in RANKS and not name.startswith(LAUNCHERS)
    }
