"""Which queued run may start on which devices, and why the others wait. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.contract.placement import Ask, Offer, Place, Unplaceable, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a queued run needs."""

    run_id: int
    ask: Ask

    @classmethod
    def of(cls, run_id: int, params: Mapping[str, Any], launch: Mapping[str, Any] | None = None) -> "Demand":
        """Read the demand from a run's parameters and launch options."""
        return cls(run_id=run_id, ask=Ask.of(params, launch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What this worker's executor offers, and what the whole database has in use."""

    offer: Offer = field(default_factory=Offer)
    """GPUs available to this worker's attempts."""
    busy: Mapping[int, str] = field(default_factory=dict)
    """GPUs used by other processes, and how."""
    held: Mapping[int, int] = field(default_factory=dict)
    """GPU -> run of this database that holds it."""
    cpu_runs: Sequence[int] = ()
    """Active CPU runs of all workers."""
    max_cpu_runs: int = 1
    others: Sequence[Offer] = ()
    """Devices of the other live workers."""
    jobs: int = 0
    """Active runs of all workers that use a scheduler."""
    max_jobs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The run may start."""

    device: str
    backend: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The run waits; `why` is shown to users."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The run can never start here; `why` becomes its diagnosis."""

    why: str


Decision = Start | Wait | Refuse


def admit(demand: Demand, supply: Supply) -> Decision:
    """Return whether a run may start now, given that no earlier run waits for the same devices."""
    if supply.offer.problem:
        return Wait(supply.offer.problem)
    placed = place(demand.ask, supply.offer)
    if placed is None:
        return Wait("the worker is still detecting GPUs")
    if isinstance(placed, Unplaceable):
        if any(isinstance(place(demand.ask, other), Place) for other in supply.others):
            return Wait(f"another worker has the GPUs for it; on this one: {placed.why}")
        return Refuse(_sentence(placed.why))
    if supply.offer.scheduler:
        return _on_nodes(placed, demand.ask, supply)
    return _on_cpu(supply) if placed.device == "cpu" else _on_gpus(placed, supply)


def _sentence(why: str) -> str:
    return f"{why[0].upper()}{why[1:]}."


def _on_cpu(supply: Supply) -> Decision:
    active = len(supply.cpu_runs)
    if active < supply.max_cpu_runs:
        return Start(device="cpu", backend="gloo")
    runs = ", ".join(str(run) for run in supply.cpu_runs)
    return Wait(
        f"the CPU is in use by run{'s' if active > 1 else ''} {runs}: {active} of {supply.max_cpu_runs} CPU runs "
        "(DDP_AUDIT_MAX_CPU_RUNS) are active"
    )


def _on_nodes(placed: Place, ask: Ask, supply: Supply) -> Decision:
    if supply.jobs >= supply.max_jobs:
        return Wait(f"{supply.jobs} of {supply.max_jobs} jobs (DDP_AUDIT_SLURM_MAX_JOBS) are active")
    gpus = () if placed.device == "cpu" else tuple(range(min(ask.gpus_per_node, placed.gpus_most)))
    return Start(device=placed.device, backend=placed.backend, gpus=gpus)


def _on_gpus(placed: Place, supply: Supply) -> Decision:
    visible = supply.offer.gpus or ()
    free = [gpu for gpu in visible if gpu not in supply.held and gpu not in supply.busy]
    if len(free) >= placed.gpus_least:
        return Start(device=placed.device, backend=placed.backend, gpus=tuple(free[: placed.gpus_most]))
    taken = [f"GPU {gpu} by run {run}" for gpu, run in sorted(supply.held.items()) if gpu in visible]
    taken += [f"GPU {gpu} by {how}" for gpu, how in sorted(supply.busy.items()) if gpu not in supply.held]
    return Wait(
        f"{len(free)} of {len(visible)} GPUs are free, {placed.gpus_least} are needed; in use: {'; '.join(taken)}"
    )


def resource_of(decision: Decision, demand: Demand, supply: Supply) -> str:
    """Return which queue a run is in: CPU runs do not wait behind GPU runs, and vice versa."""
    if isinstance(decision, Start):
        return decision.device
    placed = place(demand.ask, supply.offer)
    return placed.device if isinstance(placed, Place) else "cuda"
