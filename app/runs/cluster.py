"""Launch options of runs on a Slurm cluster, and their checks against what the live workers know of it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.runs.errors import FieldError, Refused
from app.runs.models import WorkerRow
from trainer.contract.params import CommonParams
from trainer.contract.placement import shape
from trainer.contract.timelimit import seconds_of

MOST_CPUS: Final = 1024
WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]{0,127}")
RESOURCES: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=,/+-]{0,127}")
Problem = tuple[str, str]
"""Launch option, and what is wrong with its value."""


def _count(least: int, most: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        fits = type(value) is int and least <= value <= most
        return "" if fits else f"must be a whole number from {least} to {most}, given {value!r}"

    return check


def _matching(pattern: re.Pattern[str], example: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        fits = isinstance(value, str) and pattern.fullmatch(value)
        return "" if fits else f"must be a name such as {example}, given {value!r}"[:300]

    return check


def _time(value: Any) -> str:
    if seconds_of(str(value)) is not None and type(value) in {int, str}:
        return ""
    return f"must be minutes or a time such as 90, 1:30:00 or 2-00:00:00, given {value!r}"[:300]


FIELDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "nodes": _count(1, 64),
    "ranks_per_node": _count(1, 64),
    "cpus_per_rank": _count(1, MOST_CPUS),
    "partition": _matching(WORD, "gpu"),
    "account": _matching(WORD, "research"),
    "time_limit": _time,
    "gres": _matching(RESOURCES, "gpu:2"),
}
"""Launch options that the Slurm executor supports, and the check of each."""


def check_options(launch: Mapping[str, Any], params: CommonParams) -> None:
    """Refuse launch options that cannot work on any cluster. Raises Refused naming every invalid one."""
    problems: list[Problem] = []
    for name, value in launch.items():
        if name not in FIELDS:
            problems.append((name, f"unknown to the Slurm executor, which supports {', '.join(FIELDS)}"))
        elif why := FIELDS[name](value):
            problems.append((name, why))
    _refuse(problems or _shape_problems(launch, params.world_size))


def _shape_problems(launch: Mapping[str, Any], ranks: int) -> list[Problem]:
    nodes, per_node = shape(launch, ranks)
    if nodes * per_node == ranks or not {"nodes", "ranks_per_node"} & launch.keys():
        return []
    field = "ranks_per_node" if "ranks_per_node" in launch else "nodes"
    fitting = [str(number) for number in range(1, ranks + 1) if ranks % number == 0]
    why = (
        f"{nodes} nodes x {per_node} ranks on each are {nodes * per_node} ranks, and world_size is {ranks}: "
        f"every node gets the same number; nodes can be {', '.join(fitting)}"
    )
    return [(field, why)]


def check_cluster(launch: Mapping[str, Any], params: CommonParams, workers: Sequence[WorkerRow]) -> None:
    """Refuse a run that no partition known to the live workers can take; unknown limits are left to Slurm.

    Raises Refused naming every invalid option.
    """
    known = [worker.devices for worker in workers if worker.devices and worker.devices.get("partitions")]
    if known:
        _refuse(_problems_on(known[0]["partitions"], launch, params.world_size))


def _problems_on(partitions: Sequence[Mapping[str, Any]], launch: Mapping[str, Any], ranks: int) -> list[Problem]:
    names = {str(partition["name"]): partition for partition in partitions}
    wanted = str(launch["partition"]).split(",") if "partition" in launch else []
    unknown = [name for name in wanted if name not in names]
    if unknown:
        return [("partition", f"{unknown[0]!r} does not exist; the cluster has {', '.join(names)}")]
    usual = [partition for partition in partitions if partition.get("default")]
    chosen = [names[name] for name in wanted] or usual
    nodes, limit = shape(launch, ranks)[0], seconds_of(str(launch.get("time_limit", "")))
    if not chosen or all(isinstance(partition.get("nodes"), int) for partition in chosen) is False:
        return []
    problems: list[Problem] = []
    most = max(chosen, key=lambda partition: int(partition["nodes"]))
    if nodes > most["nodes"]:
        problems.append(("nodes", f"{nodes} nodes are requested, partition {most['name']} has {most['nodes']}"))
    longest = [partition.get("max_seconds") for partition in chosen]
    if limit is not None and all(longest) and limit > max(int(seconds or 0) for seconds in longest):
        top = max(int(seconds or 0) for seconds in longest) // 60
        problems.append(("time_limit", f"{limit // 60} minutes are over the {top} of partition {most['name']}"))
    return problems


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        errors = [FieldError(field=f"launch.{name}", message=why) for name, why in problems]
        raise Refused("invalid_launch", "; ".join(f"{error.field}: {error.message}" for error in errors), errors)
