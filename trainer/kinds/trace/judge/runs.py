"""The trace as the checks look at it: engine, windows of all ranks side by side, and epochs."""

import bisect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trainer.kinds.trace.judge.reading import RankTrace, Trace
from trainer.kinds.trace.judge.records import (
    CellRecord,
    DrawnRecord,
    HookRecord,
    LoaderRecord,
    ModelRecord,
    OptimizerRecord,
    OptimizerTotals,
    PassRecord,
    WindowRecord,
)
from trainer.kinds.trace.site.ddp_audit_probe.losses import CLASSES, ELEMENTWISE, PER_SAMPLE

AVERAGING_HOOKS = ("allreduce_hook", "fp16_compress", "bf16_compress", "powerSGD", "PowerSGD")
"""Beginnings of the names of torch's own communication hooks, which average."""


LOSSES = frozenset((*CLASSES, *ELEMENTWISE, *PER_SAMPLE))
"""Loss functions that the probe knows by name."""
MOST_EPOCH_ENDS = 64
"""Last windows of epochs that the probe records."""


@dataclass(frozen=True, slots=True)
class Step:
    """One window of one optimizer on every rank that wrote it down."""

    optimizer: int
    step: int
    ranks: Mapping[int, WindowRecord]

    @property
    def micro_batches(self) -> int:
        """The most that any rank has."""
        return max((record.micro_batches for record in self.ranks.values()), default=0)


class Run:
    """A trace with what several checks need to know about it."""

    def __init__(self, trace: Trace, exit_code: int | None = None) -> None:
        self.trace, self.exit_code = trace, exit_code
        self._elsewhere: dict[int, set[tuple[int, float | None]]] = {}

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.trace.world_size

    @property
    def first(self) -> RankTrace | None:
        """The lowest rank, which stands for all where all are alike."""
        return self.trace.first

    @cached_property
    def models(self) -> dict[int, ModelRecord]:
        """Wrapped models by number."""
        return {item.model: item for item in self.first.all(ModelRecord)} if self.first else {}

    @cached_property
    def hooks(self) -> dict[int, str]:
        """Communication hook of each model."""
        return {item.model: item.hook for item in self.first.all(HookRecord)} if self.first else {}

    @cached_property
    def optimizers(self) -> dict[int, OptimizerRecord]:
        """Optimizers by number."""
        return {item.optimizer: item for item in self.first.all(OptimizerRecord)} if self.first else {}

    @cached_property
    def engine(self) -> str:
        """ddp, fsdp2, deepspeed or none."""
        if self.models:
            return "ddp"
        if any(item.sharded for item in self.optimizers.values()):
            return "fsdp2"
        frameworks = self.first.about.frameworks if self.first and self.first.about else {}
        return "deepspeed" if "deepspeed" in frameworks else "none"

    @cached_property
    def steps(self) -> dict[int, list[Step]]:
        """Optimizer -> windows that were looked at, in order of step."""
        found: dict[tuple[int, int], dict[int, WindowRecord]] = {}
        for rank in self.trace.ranks:
            for record in rank.all(WindowRecord):
                found.setdefault((record.optimizer, record.step), {})[rank.rank] = record
        ordered: dict[int, list[Step]] = {}
        for (optimizer, step), ranks in sorted(found.items()):
            ordered.setdefault(optimizer, []).append(Step(optimizer, step, ranks))
        return ordered

    def owns(self, optimizer: int, rank: int, cell: CellRecord) -> bool:
        """Return whether a cell is an optimizer's own: others leave gradients here that are cleared on purpose."""
        if optimizer not in self._elsewhere:
            self._elsewhere[optimizer] = _used_elsewhere(self, optimizer)
        return not (cell.cleared and {(rank, cell.place), (rank, cell.backward[0])} & self._elsewhere[optimizer])

    @cached_property
    def main_optimizer(self) -> int | None:
        """The optimizer with the most steps."""
        if not self.steps:
            return None
        return max(self.steps, key=lambda number: (self.steps_done(number), -number))

    def totals(self, optimizer: int, rank: RankTrace | None = None) -> OptimizerTotals | None:
        """Return the newest counts of an optimizer."""
        chosen = rank or self.first
        totals = chosen.totals if chosen else None
        return totals.optimizers.get(str(optimizer)) if totals else None

    def steps_done(self, optimizer: int) -> int:
        """Return how many steps an optimizer made on the first rank, as far as is known."""
        totals = self.totals(optimizer)
        seen = self.steps.get(optimizer, [])
        return max(totals.steps if totals else 0, seen[-1].step if seen else 0)

    def usual_micro_batches(self, optimizer: int) -> int | None:
        """Return how many micro-batches most windows of an optimizer have."""
        counts: Counter[int] = Counter()
        totals = self.totals(optimizer)
        for pattern in totals.patterns if totals else []:
            counts[pattern[0]] += pattern[4] * bool(pattern[0])
        if not +counts:
            counts.update(step.micro_batches for step in self.steps.get(optimizer, []))
        return max(counts, key=lambda count: (counts[count], count)) if +counts else None

    @cached_property
    def unseen_losses(self) -> dict[str, int]:
        """Loss functions that were called and cannot be weighed -> how often, on the first rank."""
        totals = self.first.totals if self.first else None
        return {name: count for name, count in (totals.unseen if totals else {}).items() if name in LOSSES}

    def counted(self, model: int) -> bool:
        """Return whether the reductions of a model are counted."""
        return not self.hooks.get(model, "none").startswith("none")

    def averages(self, model: int) -> bool:
        """Return whether the reduction of a model is known to average."""
        hook = self.hooks.get(model, "none")
        return hook == "ours" or hook.startswith(("none", *AVERAGING_HOOKS))

    def synchronised(self, cell: CellRecord) -> bool:
        """Return whether a reduction came with a cell."""
        if cell.syncs or cell.model < 0 or self.counted(cell.model):
            return cell.syncs > 0
        return cell.forward_sync

    @cached_property
    def epochs(self) -> "Epochs":
        """Where the epochs begin, by the first rank's clock."""
        return Epochs(self)


def _used_elsewhere(run: Run, optimizer: int) -> set[tuple[int, float | None]]:
    """Return (rank, line) of backward passes that only other optimizers use: what they leave here is not missed.

    In addition, (rank, begin) of single passes that another optimizer used: one line may serve several optimizers.
    """
    used: dict[bool, set[tuple[int, float | None]]] = {True: set(), False: set()}
    passes: set[tuple[int, float | None]] = set()
    for number, steps in run.steps.items():
        for step in steps:
            for rank, record in step.ranks.items():
                kept = [cell for cell in record.cells if not cell.cleared]
                used[number == optimizer].update((rank, cell.place) for cell in kept)
                if number != optimizer:
                    passes.update((rank, cell.backward[0]) for cell in kept)
    return (used[False] - used[True]) | passes


class Epochs:
    """Passes over the loaders that training reads, on the lowest rank."""

    def __init__(self, run: Run) -> None:
        self._run = run
        rank = run.first
        self.loaders = {item.loader: item for item in rank.all(LoaderRecord)} if rank else {}
        passes = rank.all(PassRecord) if rank else []
        drawn = {(item.loader, item.number): item.t for item in rank.all(DrawnRecord)} if rank else {}
        moments = sorted(
            record.step_at[0]
            for steps in run.steps.values()
            for step in steps
            for number, record in step.ranks.items()
            if rank and number == rank.rank
        )
        self.training = _with_steps(passes, drawn, moments)
        """Loaders whose passes contain optimizer steps."""
        self.begins = sorted(item.t for item in passes if item.loader in self.training)
        self._rank = rank.rank if rank else 0
        self._last = {number: run.steps_done(number) for number in run.steps}
        self._ends = {number: set(self._of(steps)) for number, steps in run.steps.items()}

    def _of(self, steps: list[Step]) -> list[int]:
        """Return the steps that end an epoch: the newest one looked at before each further pass, and the last."""
        own = [(step.ranks[self._rank].step_at[1], step) for step in steps if self._rank in step.ranks]
        ends = [step.step for _, step in own if step.ranks[self._rank].why == "epoch end" and not self.begins]
        # The probe records the last window of an epoch unless it did so anyway, or has done so too often.
        all_there = sum(step.ranks[self._rank].why == "epoch end" for _, step in own) < MOST_EPOCH_ENDS
        for begin in self.begins[1:]:
            before = [step for at, step in own if at <= begin][-1:]
            ends += [step.step for step in before if all_there or step.ranks[self._rank].why == "epoch end"]
        return [*ends, self._last[steps[0].optimizer]] if steps else ends

    def of(self, step: Step) -> int | None:
        """Return the epoch of a window, from 0 on; None where it is not known."""
        record = step.ranks.get(self._rank)
        if record is None or not self.begins:
            return None
        return max(0, bisect.bisect_right(self.begins, record.step_at[0]) - 1)

    def is_last(self, step: Step) -> bool:
        """Return whether a window is the last one of its epoch."""
        return step.step in self._ends.get(step.optimizer, set())

    def straddles(self, step: Step) -> bool:
        """Return whether a window has micro-batches of two epochs."""
        record = step.ranks.get(self._rank)
        own = [cell for cell in record.cells if self._run.owns(step.optimizer, self._rank, cell)] if record else []
        if len(own) < 2:
            return False
        early, late = own[0].backward[0], own[-1].backward[0]
        return any(early < begin < late for begin in self.begins[1:])


def _with_steps(
    passes: list[PassRecord], drawn: Mapping[tuple[int, int], float], moments: list[float]
) -> frozenset[int]:
    strict, loose = set(), set()
    for index, item in enumerate(passes):
        following = passes[index + 1].t if index + 1 < len(passes) else float("inf")
        end = drawn.get((item.loader, item.number), following)
        if _any_between(moments, item.t, end):
            strict.add(item.loader)
        if _any_between(moments, item.t, following):
            loose.add(item.loader)
    # A loader with workers may have drawn everything before the first step.
    return frozenset(strict or loose)


def _any_between(moments: list[float], begin: float, end: float) -> bool:
    place = bisect.bisect_left(moments, begin)
    return place < len(moments) and moments[place] <= end
