"""Numbers that the user expects: one check each."""

import math
from collections.abc import Callable, Mapping, Sequence

from trainer.contract.events import encode_number
from trainer.contract.result import Check, Relation
from trainer.forensics.cells import ratio
from trainer.kinds.trace.judge import synchronisations
from trainer.kinds.trace.judge.catalogue import EXPECTABLE
from trainer.kinds.trace.judge.runs import Run
from trainer.kinds.trace.judge.verdicts import Understanding

DIGITS = 6


def checks(run: Run, expected: Mapping[str, float], understood: Sequence[tuple[int, Understanding]]) -> list[Check]:
    """Return one check per expected number; measured is the value that is furthest from it."""
    return [_check(name, wanted, _values(run, name, understood)) for name, wanted in sorted(expected.items())]


def _check(name: str, wanted: float, values: Sequence[float]) -> Check:
    measured = max(values, key=lambda value: abs(value - wanted), default=None)
    measured = None if measured is None else _rounded(measured)
    return Check(
        name=f"expect_{name}",
        title=f"{EXPECTABLE[name]}: as expected",
        passed=None if measured is None else measured == wanted,
        measured=encode_number(measured),
        limit=wanted,
        relation=Relation.EQUAL,
        detail="" if values else "not seen, so it could not be compared",
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) and not value.is_integer() else value


def _values(run: Run, name: str, understood: Sequence[tuple[int, Understanding]]) -> list[float]:
    optimizer = run.main_optimizer
    if name == "world_size":
        return [float(run.world_size)] * bool(run.world_size)
    if optimizer is None:
        return []
    clear = [one for number, item in understood if number == optimizer for one in item.clear]
    found: Mapping[str, Callable[[], list[float]]] = {
        "syncs_per_step": lambda: _syncs(run, optimizer),
        "micro_batches_per_step": lambda: _micro_batches(run, optimizer),
        "optimizer_steps": lambda: [float(run.steps_done(optimizer))],
        "weight_ratio": lambda: [ratio(one.window) for one in clear],
        "weight_sum": lambda: [one.window.total_weight for one in clear if one.scaled],
    }
    return found[name]()


def _syncs(run: Run, optimizer: int) -> list[float]:
    judged = synchronisations.judge(run)
    if run.engine not in ("ddp", "fsdp2") or not (judged.seen or judged.findings):
        return []
    return [float(syncs) for syncs, _ in synchronisations.per_step(run, optimizer)]


def _micro_batches(run: Run, optimizer: int) -> list[float]:
    totals = run.totals(optimizer)
    if totals and totals.patterns:
        return [float(pattern[0]) for pattern in totals.patterns]
    return [float(step.micro_batches) for step in run.steps[optimizer]]
