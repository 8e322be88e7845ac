"""Shared code of the training benchmarks: two ranks of one torchrun, prepared images, a header, paired times."""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.machine import cpu_model
from trainer.common.policy import use_deterministic_policy
from trainer.common.telemetry import Telemetry
from trainer.contract.config import RunConfig
from trainer.contract.paths import RunPaths
from trainer.kinds.cifar.data.sources import SYNTHETIC_CLASSES
from trainer.kinds.cifar.data.split import PreparedData
from trainer.kinds.cifar.data.synthetic import synthetic_images
from trainer.kinds.cifar.params import KIND, CifarParams
from trainer.kinds.cifar.train.loop import Training
from trainer.kinds.cifar.train.stage import build_training

IMAGES = 2000
ROOT = Path(__file__).resolve().parents[1]
RANKS = int(os.environ.get("BENCHMARK_RANKS", "2"))
"""One rank can differ from two: on virtual machines, two CPUs are often two threads of one core."""


def launch(script: str, run_rank: Callable[[Group, StageContext], None]) -> None:
    """Start `script` under torchrun, or run as one of its ranks."""
    if "RANK" not in os.environ:
        _start(script)
        return
    context = _context(Path(os.environ["BENCHMARK_ROOT"]))
    if RANKS == 1:
        _alone(context, run_rank)
        return
    with process_group(context) as group:
        run_rank(group, context)


def _alone(context: StageContext, run_rank: Callable[[Group, StageContext], None]) -> None:
    use_deterministic_policy()
    dist.init_process_group("gloo")
    group = Group(rank=0, world_size=1, device=torch.device("cpu"), backend="gloo", telemetry=context.telemetry)
    run_rank(group, context)
    dist.destroy_process_group()


def training_of(group: Group, context: StageContext) -> Training:
    """Return the product's own training of mode `no_sync` on the prepared images."""
    return build_training(
        context.params, group, context=context, card=PreparedData(context.paths).card(), mode="no_sync"
    )


def timed(action: Callable[[], None]) -> float:
    """Return the seconds `action` took on the slower rank; both start together."""
    dist.barrier()
    began = time.perf_counter()
    action()
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def paired(first: Callable[[], None], second: Callable[[], None], pairs: int) -> list[tuple[float, float]]:
    """Return the times of `pairs` pairs after two warm-up rounds; the order within a pair alternates."""
    for _ in range(2):
        first()
        second()
    times = []
    for number in range(pairs):
        if number % 2:
            right = timed(second)
            times.append((timed(first), right))
        else:
            left = timed(first)
            times.append((left, timed(second)))
    return times


def median_ratio(times: Sequence[tuple[float, float]]) -> float:
    """Return the median over the pairs of first / second."""
    return statistics.median(first / second for first, second in times)


def header(title: str, count: int) -> str:
    """Return the header of every table."""
    return (
        f"{title}\nmachine: {cpu_model()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}; "
        f"matrix instructions: {torch.backends.cpu.get_cpu_capability()}{' AMX' if _has_amx() else ''}; "
        f"torch {torch.__version__}, Python {platform.python_version()}; {RANKS} ranks, one thread each; "
        f"n = {count} pairs of windows, medians; load {os.getloadavg()[0]:.1f} at the end"
    )


def _has_amx() -> bool:
    return "amx_bf16" in Path("/proc/cpuinfo").read_text()


def _start(script: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = RunPaths(Path(folder))
        prepared = PreparedData(paths)
        for split, count in (("train", IMAGES), ("validation", 200), ("test", 200)):
            prepared.write(split, *synthetic_images(47, 1, count))  # type: ignore[arg-type]
        prepared.seal("synthetic", SYNTHETIC_CLASSES)
        torchrun(script, *sys.argv[1:], BENCHMARK_ROOT=folder)


def torchrun(script: str, *arguments: str, **variables: str) -> None:
    """Run a script in RANKS ranks with one thread each. Raises CalledProcessError if one fails."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    subprocess.run([*argv, script, *arguments], check=True, cwd=ROOT, env={**os.environ, **own, **variables})


def _context(root: Path) -> StageContext:
    rank = int(os.environ["RANK"])
    # The sizes of the recipe, so that reports are as frequent as there; the windows are drawn from IMAGES images.
    sizes = {"validation_size": 200, "test_size": 200, "precision": "bf16", "mode": "no_sync"}
    params = CifarParams.model_validate(sizes)
    paths = RunPaths(root)
    config = RunConfig(
        run_id=1,
        kind="cifar",
        params=params.model_dump(mode="json"),
        backend="gloo",
        device="cpu",
        datasets_dir=str(root),
    )
    return StageContext(
        config=config,
        kind=KIND,
        params=params,
        paths=paths,
        stage="benchmark",
        attempt=1,
        rank=rank,
        world_size=RANKS,
        local_rank=rank,
        telemetry=Telemetry(paths.attempt("benchmark", 1), rank),
    )
