"""Inspects this machine and prints one JSON document: `python -m trainer.probe [--ranks N] [--device D] [--share-gpu]`.

With `--ranks N` it starts N real ranks, each on its device, lets them reduce a number, and reports the device of each
rank. Exit code 0 without shortfalls, else 1; the document is printed in both cases.
"""

import argparse
import os
import platform
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.common.bf16 import computes_bf16
from trainer.common.machine import cpu_model, memory_bytes, operating_system
from trainer.common.process import take_standard_output
from trainer.contract.environment import EnvironmentReport, GpuInfo
from trainer.trial import Trial, choose, run_trial


def main() -> int:
    """Print the report and return the exit code."""
    options = _options()
    output = take_standard_output()
    trial = None
    if options.ranks is not None:
        # The trial forks its ranks, so it runs before anything here initialises CUDA.
        trial = run_trial(choose(options.ranks, options.device, share_gpu=options.share_gpu))
    report = examine(Path(options.data_dir), trial)
    with output:
        output.write(report.model_dump_json(indent=1) + "\n")
    return 1 if report.shortfalls else 0


def examine(data_dir: Path, trial: Trial | None = None) -> EnvironmentReport:
    """Return the description of this machine, and the outcome of `trial` if there was one."""
    shortfalls = [] if dist.is_gloo_available() else ["this torch has no gloo: small collectives cannot run"]
    return EnvironmentReport(
        host=socket.gethostname(),
        operating_system=operating_system(),
        python=platform.python_version(),
        torch=torch.__version__,
        torchvision=_version("torchvision"),
        cuda_runtime=torch.version.cuda,
        driver=_driver(),
        cpu=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        disk_free_bytes=shutil.disk_usage(_existing(data_dir)).free,
        gpus=[_gpu(index) for index in range(torch.cuda.device_count())],
        gloo=dist.is_gloo_available(),
        nccl=dist.is_nccl_available(),
        bf16_cpu=computes_bf16(torch.device("cpu")),
        ranks_asked=trial.ranks_asked if trial else None,
        device=trial.device if trial else None,
        backend=trial.backend if trial else None,
        ranks=trial.ranks if trial else [],
        shortfalls=shortfalls + (trial.shortfalls if trial else []),
    )


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m trainer.probe", description=__doc__)
    parser.add_argument("--ranks", type=int, help="start a trial group with this many ranks")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--share-gpu", action="store_true", help="let several ranks use one GPU, over gloo")
    parser.add_argument("--data-dir", default=".", help="folder whose free disk space is measured")
    return parser.parse_args()


def _gpu(index: int) -> GpuInfo:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    with torch.cuda.device(index):
        bf16 = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return GpuInfo(
        index=index,
        name=properties.name,
        uuid=str(getattr(properties, "uuid", "")),
        total_bytes=total,
        free_bytes=free,
        bf16=bf16,
    )


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split("\n", maxsplit=1)[0].strip() or None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


if __name__ == "__main__":
    sys.exit(main())
