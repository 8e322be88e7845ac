"""What the processes started here inherit: neither secrets, nor what another launcher set for ranks of its own."""

from collections.abc import Mapping
from typing import Final

SECRETS: Final = (
    "DDP_AUDIT_TOKEN",
    "DDP_AUDIT_VIEWER_TOKEN",
    "DDP_AUDIT_WEBHOOK_URL",
    "DDP_AUDIT_WEBHOOK_SECRET",
    "DDP_AUDIT_DATABASE_URL",
)
"""What no job and no child that decodes pictures may see; an address of a database may hold a password."""
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
"""What torchrun and its like tell a rank about its group."""
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
"""Beginnings of what launchers set for the processes they start, torchrun's own options (PET_) included."""


def for_children(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a child inherits. Secrets are settings, which are read in any case of letters."""
    return {
        name: value
        for name, value in environment.items()
        if name.upper() not in SECRETS and name not in RANKS and not name.startswith(LAUNCHERS)
    }
