"""What sbatch says when it refuses a job -> the field that is wrong and what would work. Pure."""

import re
from typing import Final

ADVICE: Final = (
    (r"invalid partition", "launch.partition: `sinfo` lists the partitions"),
    (r"invalid account|account/partition", "launch.account: `sacctmgr show associations` lists yours"),
    (r"time limit", "launch.time_limit: `scontrol show partition` shows the limit (MaxTime)"),
    (r"invalid qos", "the quality of service given by DDP_AUDIT_SLURM_ARGUMENTS is not valid"),
    (r"generic resource|gres", "launch.gres: `sinfo -o '%n %G'` lists what nodes have"),
    (
        r"node count|more processors|node configuration|cpu count|too many|memory specification",
        "launch.nodes, launch.cpus_per_rank and launch.gres: `sinfo -N -l` lists what the nodes have",
    ),
    (
        r"unrecognized option|invalid option|invalid argument",
        "DDP_AUDIT_SLURM_ARGUMENTS has an argument sbatch rejects",
    ),
    (r"batch script|unable to open", "the script in the folder of the run could not be read"),
)
"""Pattern of a message, and what to look at."""
NOISE: Final = re.compile(r"sbatch: (?:error|fatal): |Batch job submission failed: ", re.IGNORECASE)


def explain(text: str) -> str:
    """Return a sentence part for users: sbatch's own words, and which field to change."""
    said = " ".join(NOISE.sub("", text).split())[:400] or "sbatch failed without a message"
    for pattern, advice in ADVICE:
        if re.search(pattern, text, re.IGNORECASE):
            check = "check " if advice.startswith("launch") else ""
            return f"Slurm refused the job: {said}; {check}{advice}"
    return f"Slurm refused the job: {said}"
