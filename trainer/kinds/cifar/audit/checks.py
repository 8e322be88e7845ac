"""Turns the facts of the training stages into checks: pure functions, no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.contract.result import Check, Relation
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts
from trainer.kinds.cifar.facts import EpochFacts, ModeFacts
from trainer.kinds.cifar.params import CifarParams, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One count of one rank in one epoch of one mode, and its expected value."""

    mode: str
    epoch: int
    rank: int
    counted: int
    expected: int

    @property
    def off(self) -> int:
        """Difference from the expected value."""
        return abs(self.counted - self.expected)

    def __str__(self) -> str:
        return (
            f"mode {self.mode}, epoch {self.epoch}, rank {self.rank}: counted {self.counted}, expected {self.expected}"
        )


def mode_of(facts: ModeFacts) -> Mode:
    """Return the mode of `facts` as its literal."""
    return "every" if facts.mode == "every" else "no_sync"


def count_checks(params: CifarParams, modes: Sequence[ModeFacts]) -> list[Check]:
    """Return the checks on samples, micro-batches, optimizer steps and synchronisations of every rank and epoch."""
    return [
        samples_check(params, modes),
        _per_rank(
            "micro_batches",
            "Micro-batches per rank and epoch",
            [cell for facts in modes for cell in cells(facts, "micro_batches", params.micro_batches)],
            unit="micro-batches",
            hint=_SIZES_HINT,
        ),
        _per_rank(
            "optimizer_steps",
            "Optimizer steps per epoch",
            [cell for facts in modes for cell in cells(facts, "optimizer_steps", params.steps_per_epoch)],
            unit="steps",
            hint=_SIZES_HINT,
        ),
        gradient_syncs_check(params, modes),
    ]


_SIZES_HINT = (
    "Check batch_size, world_size and train_size together, and whether every rank finished its epochs; "
    "the expected number is computed from these parameters"
)


def cells(facts: ModeFacts, counted: str, expected: int) -> list[Cell]:
    """Return one count for every epoch and rank, with its expected value."""
    return [
        Cell(mode=facts.mode, epoch=epoch.epoch, rank=rank, counted=count, expected=expected)
        for epoch in facts.epochs
        for rank, count in enumerate(getattr(epoch, counted))
    ]


def samples_check(params: CifarParams, modes: Sequence[ModeFacts]) -> Check:
    """Check that every rank drew its share, and all ranks together every training image exactly once per epoch."""
    check = _per_rank(
        "samples_per_rank",
        "Training images per rank and epoch",
        [cell for facts in modes for cell in cells(facts, "samples", params.samples_per_rank)],
        unit="images",
        hint=_SIZES_HINT,
    )
    for facts in modes:
        for epoch in facts.epochs:
            if epoch.repeated_ids or epoch.distinct_ids != params.train_size:
                return check.model_copy(update={"passed": False, "detail": _duplicates(facts, epoch, params)})
    return check


def gradient_syncs_check(params: CifarParams, modes: Sequence[ModeFacts]) -> Check:
    """Check that the hook counted what the mode implies, on every rank and in every epoch.

    `measured` and `limit` are synchronisations per epoch, summed over the modes, for the epoch that is furthest off.
    """
    all_cells = [
        cell for facts in modes for cell in cells(facts, "gradient_syncs", params.syncs_per_epoch(mode_of(facts)))
    ]
    wrong = [cell for cell in all_cells if cell.off]
    complete = all(len(facts.epochs) == params.epochs for facts in modes)
    worst = {facts.mode: max((c for c in all_cells if c.mode == facts.mode), key=lambda c: c.off) for facts in modes}
    if wrong:
        detail = "; ".join(f"{cell}{_sync_cause(cell, params)}" for cell in worst.values() if cell.off)
    else:
        each = ", ".join(
            f"{facts.mode} {params.syncs_per_epoch(mode_of(facts))} in {params.steps_per_epoch} steps"
            for facts in modes
        )
        detail = f"per epoch: {each}; the same on all {params.world_size} ranks and in all {params.epochs} epochs"
    return Check(
        name="gradient_syncs",
        title="Gradient synchronisations per epoch",
        passed=not wrong and complete,
        measured=sum(cell.counted for cell in worst.values()),
        limit=sum(cell.expected for cell in worst.values()),
        relation=Relation.EQUAL,
        unit="synchronisations",
        detail=detail,
    )


def confusion_check(params: CifarParams, modes: Sequence[ModeFacts]) -> Check:
    """Check that every confusion matrix counts every test image exactly once."""
    totals = {facts.mode: sum(map(sum, facts.test.confusion)) for facts in modes}
    worst = max(totals.values(), key=lambda total: abs(total - params.test_size))
    faults = [
        f"mode {facts.mode}: {len(facts.test.repeated)} test images counted twice, {len(facts.test.missing)} not at all"
        for facts in modes
        if facts.test.repeated or facts.test.missing
    ]
    detail = "; ".join(faults) or "every test image was counted exactly once across all ranks"
    return Check(
        name="confusion_total",
        title="Test images in the confusion matrix",
        passed=worst == params.test_size and not faults,
        measured=worst,
        limit=params.test_size,
        relation=Relation.EQUAL,
        unit="images",
        detail=detail,
    )


def artifacts_check(artifacts: Sequence[ModeArtifacts]) -> Check:
    """Check that every required file of every mode exists and is not empty."""
    faults = [fault for mode in artifacts for fault in mode.faulty()]
    expected = sum(len(mode.required) for mode in artifacts)
    return Check(
        name="artifacts",
        title="Artifacts exist and are not empty",
        passed=not faults,
        measured=expected - len(faults),
        limit=expected,
        relation=Relation.EQUAL,
        unit="files",
        detail="; ".join(faults) or "model, history, report and sample image of every mode",
    )


def _per_rank(name: str, title: str, counts: Sequence[Cell], *, unit: str, hint: str) -> Check:
    worst = max(counts, key=lambda cell: cell.off)
    wrong = [cell for cell in counts if cell.off]
    detail = f"{worst} ({len(wrong)} of {len(counts)} counts are off). {hint}" if wrong else _all_equal(counts)
    return Check(
        name=name,
        title=title,
        passed=not wrong,
        measured=worst.counted,
        limit=worst.expected,
        relation=Relation.EQUAL,
        unit=unit,
        detail=detail,
    )


def _all_equal(counts: Iterable[Cell]) -> str:
    listed = list(counts)
    return f"all {len(listed)} counts (modes x epochs x ranks) as expected"


def _duplicates(facts: ModeFacts, epoch: EpochFacts, params: CifarParams) -> str:
    repeated = ", ".join(f"id {number}" for number in epoch.repeated_ids) or "none"
    return (
        f"mode {facts.mode}, epoch {epoch.epoch}: {epoch.distinct_ids} distinct images of {params.train_size}; "
        f"sampler duplicates: {repeated}"
    )


def _sync_cause(cell: Cell, params: CifarParams) -> str:
    if cell.counted == 0:
        return (
            ". No reduction was seen: the hook is not registered, or the loss bypassed DDP's forward "
            "(through `.module`), so each rank trains alone"
        )
    if cell.mode == "no_sync" and cell.counted == cell.expected * params.accum_steps:
        return (
            f". That is one synchronisation per micro-batch, {params.accum_steps} times as many: likely the forward "
            "runs outside `no_sync` (DDP reads the flag in the forward pass), or `every` was used by mistake. "
            "The gradient is correct in both cases, so only the count reveals it"
        )
    if cell.mode == "every" and cell.counted * params.accum_steps == cell.expected:
        return ". That is one synchronisation per optimizer step: `no_sync` was used by mistake"
    if cell.counted == 2 * cell.expected:
        return (
            ". Exactly twice the expected number: the hook may count every reduction twice; compare with the profiler"
        )
    return ". Look for a backward pass that does not belong to the mode, and compare with the profiler"
