"""Which queued run may start on which devices, and why the others wait. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

BUSY_BYTES: Final = 1 << 30
"""A GPU nobody uses still shows some hundred MiB of the driver's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a queued run asks for."""

    run_id: int
    device: str
    """auto, cuda or cpu."""
    ranks: int
    share_gpu: bool = False

    @classmethod
    def of(cls, run_id: int, params: Mapping[str, Any]) -> "Demand":
        """Read the demand from a run's parameters."""
        return cls(
            run_id=run_id,
            device=str(params.get("device", "auto")),
            ranks=int(params.get("world_size", 1)),
            share_gpu=bool(params.get("share_gpu", False)),
        )

    @property
    def gpus_needed(self) -> int:
        """GPUs a run on CUDA needs at least."""
        return 1 if self.share_gpu else self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What this worker's machine and the whole database have to give."""

    visible: tuple[int, ...] | None = None
    """Indices of the GPUs found; None while they are still being looked for."""
    busy: Mapping[int, str] = field(default_factory=dict)
    """GPUs that processes of others use, and how."""
    held: Mapping[int, int] = field(default_factory=dict)
    """GPU -> run of this database that holds it."""
    cpu_runs: Sequence[int] = ()
    """Active runs on CPU, of all workers."""
    max_cpu_runs: int = 1
    others_visible: int = 0
    """The most GPUs any other live worker has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The run may start."""

    device: str
    backend: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The run waits; `why` is shown."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The run can never start here; `why` becomes its diagnosis."""

    why: str


Decision = Start | Wait | Refuse


def admit(demand: Demand, supply: Supply) -> Decision:
    """Return whether a run may start now, given that no earlier run waits for the same devices."""
    if demand.device == "cpu":
        return _on_cpu(supply)
    if supply.visible is None:
        return Wait("the worker is still looking for GPUs")
    visible = len(supply.visible)
    if demand.device == "auto" and visible < demand.ranks:
        return _on_cpu(supply)
    if visible < demand.gpus_needed:
        if supply.others_visible >= demand.gpus_needed:
            return Wait(f"another worker has the {demand.gpus_needed} GPUs needed, this one sees {visible}")
        return Refuse(no_devices_text(demand, visible))
    return _on_gpus(demand, supply)


def no_devices_text(demand: Demand, visible: int) -> str:
    """Return what to read when `cuda` was asked for and there are not enough GPUs."""
    share = "" if demand.share_gpu else ", or share_gpu to run all ranks on one GPU over gloo"
    return (
        f"Device cuda was asked for: {visible} GPUs are visible, {demand.gpus_needed} are needed for {demand.ranks} "
        f"ranks. There is no silent fall-back to the CPU: make more GPUs visible, ask for device cpu{share}."
    )


def _on_cpu(supply: Supply) -> Decision:
    active = len(supply.cpu_runs)
    if active < supply.max_cpu_runs:
        return Start(device="cpu", backend="gloo")
    runs = ", ".join(str(run) for run in supply.cpu_runs)
    return Wait(
        f"the CPU is taken by run{'s' if active > 1 else ''} {runs}: {active} of {supply.max_cpu_runs} CPU runs "
        "(DDP_AUDIT_MAX_CPU_RUNS) are active"
    )


def _on_gpus(demand: Demand, supply: Supply) -> Decision:
    visible = supply.visible or ()
    free = [gpu for gpu in visible if gpu not in supply.held and gpu not in supply.busy]
    if len(free) >= demand.gpus_needed:
        backend = "gloo" if demand.share_gpu else "nccl"
        return Start(device="cuda", backend=backend, gpus=tuple(free[: demand.ranks]))
    taken = [f"GPU {gpu} by run {run}" for gpu, run in sorted(supply.held.items()) if gpu in visible]
    taken += [f"GPU {gpu} by {how}" for gpu, how in sorted(supply.busy.items()) if gpu not in supply.held]
    return Wait(
        f"{len(free)} of {len(visible)} GPUs are free, {demand.gpus_needed} are needed; in use: {'; '.join(taken)}"
    )


def resource_of(decision: Decision, demand: Demand, supply: Supply) -> str:
    """Return which queue a run stands in: runs on the CPU do not wait behind runs on GPUs, and the other way round."""
    if isinstance(decision, Start):
        return decision.device
    on_gpu = demand.device == "cuda" or (demand.device == "auto" and len(supply.visible or ()) >= demand.ranks)
    return "cuda" if on_gpu or (demand.device == "auto" and supply.visible is None) else "cpu"
