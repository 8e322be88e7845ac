"""What one unit of each micro-batch weighs in the gradient that the optimizer sees (docs/trace-files.md)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainer.forensics.cells import Cell, Window
from trainer.kinds.trace.judge.reading import RankTrace
from trainer.kinds.trace.judge.records import CellRecord, Loss, WindowRecord
from trainer.kinds.trace.judge.runs import Run, Step

TOLERANCE = 1e-6
ROUGH: Mapping[str, float] = {"float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative tolerance where the factor itself was rounded."""
FEWEST = 1e-9
"""Units below this number count as none."""
Objective = frozenset[tuple[str, str, int]]
"""Lines that call the loss: (function, file, line)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """One window with the weights of one objective, or why they are not known."""

    step: Step
    window: Window
    tolerance: float = TOLERANCE
    scaled: bool = True
    """Whether the weights are known including their common scale."""
    problem: str = ""
    """Why the weights are not known; empty when they are."""
    reductions: frozenset[str] = frozenset()
    weighted: bool = False
    """Whether a unit is a class weight."""
    rows: tuple[int | None, ...] = ()
    """Samples of each micro-batch."""
    sites: tuple[int | None, ...] = ()
    """Lines of loss and backward on the lowest rank."""

    @property
    def local(self) -> bool:
        """Whether a micro-batch was added after the last reduction."""
        return any(cell.local for cell in self.window.cells)


class Weigher:
    """Weighs the windows of one optimizer."""

    def __init__(self, run: Run, optimizer: int, unit: str) -> None:
        self.run, self.optimizer, self.unit = run, optimizer, unit
        self._keys = {rank.rank: _keys(rank) for rank in run.trace.ranks}
        self.steps = run.steps.get(optimizer, [])
        self.objectives = self._objectives()
        self.blind = run.engine == "fsdp2" and not any(
            cell.syncs for step in self.steps for record in step.ranks.values() for cell in record.cells
        )
        """Shards can only come out of a reduction, yet none was seen."""

    def _objectives(self) -> list[Objective]:
        """Return the losses that are judged on their own: those that never come together in a backward are one."""
        alone: set[tuple[str, str, int]] = set()
        together = False
        for step in self.steps:
            for number, record in step.ranks.items():
                for cell in record.cells:
                    keys = {
                        self._keys[number].get(loss.site, UNKNOWN) for loss in cell.losses if loss.factor is not None
                    }
                    together = together or len(keys) > 1
                    alone |= keys
        return [frozenset({key}) for key in sorted(alone)] if together else [frozenset(alone)] * bool(alone)

    def weigh(self, objective: Objective) -> list[Weighed]:
        """Return every window that was looked at, in order of step."""
        return [self._weigh(step, objective) for step in self.steps]

    def _weigh(self, step: Step, objective: Objective) -> Weighed:
        cells: list[Cell] = []
        rows: list[int | None] = []
        losses: list[Loss] = []
        problems: list[str] = []
        if len(step.ranks) < self.run.world_size:
            problems.append("not every rank wrote it down")
        for number, record in sorted(step.ranks.items()):
            if record.micro_batches > len(record.cells):
                problems.append("it has more micro-batches than are kept")
            for place, (cell, scale, after) in enumerate(self._cells(number, record)):
                mine = [loss for loss in cell.losses if self._keys[number].get(loss.site, UNKNOWN) in objective]
                found, problem = self._cell((number, place), cell, mine, scale=scale, reduced=after)
                cells.append(found)
                rows.append(cell.rows)
                losses += mine
                problems += [problem] * bool(problem)
        low = step.ranks[min(step.ranks)]
        return Weighed(
            step=step,
            window=Window.of(cells, self.run.world_size),
            tolerance=max((ROUGH.get(loss.dtype, TOLERANCE) for loss in losses), default=TOLERANCE),
            scaled=self._scaled(step),
            problem=problems[0] if problems else "",
            reductions=frozenset(loss.reduction for loss in losses),
            weighted=any(loss.weighted and loss.reduction == "mean" for loss in losses),
            rows=tuple(rows),
            sites=(*(loss.site for cell in low.cells for loss in cell.losses), *(cell.place for cell in low.cells)),
        )

    def _cells(self, rank: int, record: WindowRecord) -> Iterable[tuple[CellRecord, float | None, bool]]:
        """Yield (cell, scale, whether a reduction follows) of one rank."""
        kept = [
            (cell, record.scales[place] if place < len(record.scales) else None)
            for place, cell in enumerate(record.cells)
            if self.run.owns(self.optimizer, rank, cell)
        ]
        last = max((place for place, (cell, _) in enumerate(kept) if self._reduced(cell)), default=-1)
        for place, (cell, scale) in enumerate(kept):
            yield cell, scale, place <= last

    def _reduced(self, cell: CellRecord) -> bool:
        if self.run.world_size == 1 or self.run.engine in ("none", "deepspeed") or self.blind:
            return True
        return self.run.synchronised(cell)

    def _scaled(self, step: Step) -> bool:
        run = self.run
        if run.world_size == 1 or run.engine == "fsdp2":
            return True
        models = {cell.model for record in step.ranks.values() for cell in record.cells}
        known = models - {-1} or set(run.models)
        if run.engine != "ddp" or (-1 in models and not run.models):
            return False
        return all(
            number in run.models and run.models[number].world_size == run.world_size and run.averages(number)
            for number in known
        )

    def _cell(
        self, at: tuple[int, int], cell: CellRecord, losses: Sequence[Loss], *, scale: float | None, reduced: bool
    ) -> tuple[Cell, str]:
        """Return the micro-batch `at` (rank, number), and why its weight is not known."""
        divisor = (1.0 if scale is None else scale) * (self.run.world_size if reduced else 1)
        pairs = _pairs(losses, divisor)
        problem = "" if cell.losses or cell.cleared else UNSEEN
        if pairs is None:
            pairs, problem = [], problem or "a factor or a number of units is not finite"
        units, whole = math.fsum(units for units, _ in pairs), math.fsum(units * weight for units, weight in pairs)
        if self.unit == "token":
            problem = problem or ("" if cell.cleared or _alike(losses, pairs) else OWN_WEIGHTS)
        elif units:
            units = float(cell.rows or 0)
            problem = problem or ("" if units else "the number of samples of a micro-batch is not visible")
        weight = whole / units if units and not cell.cleared else 0.0
        local = not reduced and not cell.cleared
        return Cell(rank=at[0], micro_batch=at[1], units=units, weight=weight, local=local), problem


UNKNOWN = ("", "", 0)
UNSEEN = "a backward pass without a loss that was seen (compiled, or computed by the script itself)"
OWN_WEIGHTS = "units of one micro-batch have different weights"


def _keys(rank: RankTrace) -> dict[int, tuple[str, str, int]]:
    """Return site -> what identifies it on every rank."""
    return {number: (site.function, *(site.place or ("", 0))) for number, site in rank.sites.items()}


def _pairs(losses: Sequence[Loss], divisor: float) -> list[tuple[float, float]] | None:
    """Return (units, weight of one) of every loss that has units, None where a number is not finite."""
    arrived = [(loss, loss.factor) for loss in losses if loss.factor is not None]
    numbers = [divisor, *(loss.units for loss, _ in arrived), *(factor for _, factor in arrived)]
    if not divisor or not all(map(math.isfinite, numbers)):
        return None
    kept = [(loss, factor) for loss, factor in arrived if loss.units >= FEWEST]
    return [(loss.units, factor / (loss.units if loss.reduction == "mean" else 1.0) / divisor) for loss, factor in kept]


def _alike(losses: Sequence[Loss], pairs: Sequence[tuple[float, float]]) -> bool:
    """Return whether all units of a micro-batch have the same weight."""
    tolerance = max((ROUGH.get(loss.dtype, TOLERANCE) for loss in losses), default=TOLERANCE)
    uneven = any(
        loss.reduction == "none"
        and loss.least is not None
        and loss.most is not None
        and not math.isclose(loss.least, loss.most, rel_tol=tolerance)
        for loss in losses
    )
    return not uneven and all(math.isclose(weight, pairs[0][1], rel_tol=tolerance) for _, weight in pairs)
