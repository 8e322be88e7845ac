"""Fields of the launch form for runs on a Slurm cluster: what becomes `launch` in the request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.runs.cluster import FIELDS
from app.settings import Settings

LAUNCH: Final = "launch."
"""Prefix of these fields, so that a parameter of a kind cannot collide."""
NUMBERS: Final = frozenset({"nodes", "ranks_per_node", "cpus_per_rank"})
TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "nodes": ("Nodes", "Each gets the same number of ranks."),
    "ranks_per_node": ("Ranks per node", "Nodes times this are the ranks of the run (world_size)."),
    "cpus_per_rank": ("CPUs per rank", "A node's step gets those of all its ranks."),
    "partition": ("Partition", "The command sinfo lists them."),
    "account": ("Account", "For clusters with accounting."),
    "time_limit": ("Time limit", "Minutes, or a time such as 1:30:00, for each stage."),
    "gres": ("Resources per node", "For GPUs, such as gpu:2."),
}
"""Title and hint of each field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterField:
    """One field of the form."""

    name: str
    """With its prefix, as in the problems of a refused request."""
    title: str
    hint: str
    usual: str
    entered: str
    error: str
    numeric: bool


def cluster_fields(settings: Settings, entered: Mapping[str, str], errors: Mapping[str, str]) -> list[ClusterField]:
    """Return the fields in order, with what the user typed and the problem of each."""
    usual = {
        "nodes": "1",
        "cpus_per_rank": str(settings.slurm_cpus_per_rank),
        "partition": settings.slurm_partition,
        "account": settings.slurm_account,
        "time_limit": settings.slurm_time_limit,
    }
    return [
        ClusterField(
            name=f"{LAUNCH}{name}",
            title=TEXTS[name][0],
            hint=TEXTS[name][1],
            usual=usual.get(name, ""),
            entered=entered.get(f"{LAUNCH}{name}", ""),
            error=errors.get(f"{LAUNCH}{name}", ""),
            numeric=name in NUMBERS,
        )
        for name in FIELDS
    ]


def launch_options(entered: Mapping[str, str]) -> dict[str, Any]:
    """Return the launch options that were typed; text that is not a number is left for the check to refuse."""
    given = {name: entered.get(f"{LAUNCH}{name}", "").strip() for name in FIELDS}
    return {
        name: int(text) if name in NUMBERS and text.isascii() and text.isdigit() and len(text) < 10 else text
        for name, text in given.items()
        if text
    }
