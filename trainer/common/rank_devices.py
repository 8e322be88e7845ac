"""The device of every rank: described by the rank, then shown as environment and table of a result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trainer.common.distributed import Group
from trainer.common.machine import cpu_model, usable_cpus
from trainer.common.process import versions
from trainer.contract.config import RunConfig
from trainer.contract.result import Environment, TablePanel

Report = Mapping[str, Any]
"""What one rank reported, with the fields of `describe`."""


def describe(group: Group) -> dict[str, Any]:
    """Return this rank's device."""
    on_gpu = group.device.type == "cuda"
    return {
        "rank": group.rank,
        "device": str(group.device),
        "backend": group.backend,
        "gpu": torch.cuda.get_device_name(group.device) if on_gpu else None,
        "cuda_runtime": torch.version.cuda if on_gpu else None,
        "threads": torch.get_num_threads(),
        "cpus": usable_cpus(),
        "cpu": cpu_model(),
    }


def environment(config: RunConfig, reports: Sequence[Report], *, precision: str, data_source: str) -> Environment:
    """Return the environment of a result from the reports of all ranks."""
    first = reports[0]
    gpus = [f"rank {report['rank']}: {report['gpu']} ({report['device']})" for report in reports]
    runtime = {"cuda": str(first["cuda_runtime"])} if first["cuda_runtime"] else {}
    return Environment(
        device=config.device,
        backend=first["backend"],
        world_size=len(reports),
        threads=first["threads"],
        cpus=first["cpus"],
        precision=precision,
        versions={**versions(), **runtime},
        cpu=first["cpu"],
        gpus=gpus if first["gpu"] else [],
        data_source=data_source,
    )


def devices_panel(
    reports: Sequence[Report], column: str, value: Callable[[Report], Any], *, note: str = ""
) -> TablePanel:
    """Return the table of all ranks, with a last `column` of the kind's own."""
    return TablePanel(
        title="Ranks and devices",
        note=note,
        columns=["Rank", "Device", "GPU", "Backend", "Threads", column],
        rows=[
            [
                report["rank"],
                report["device"],
                report["gpu"] or "none",
                report["backend"],
                report["threads"],
                value(report),
            ]
            for report in reports
        ],
    )
