"""Judges the facts of the training stages: pure functions from counts to checks, no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.contract.result import Check, Relation
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts
from trainer.kinds.cifar.facts import EpochFacts, ModeFacts
from trainer.kinds.cifar.params import CifarParams, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One count of one rank in one epoch of one mode, with what it should be."""

    mode: str
    epoch: int
    rank: int
    counted: int
    expected: int

    @property
    def off(self) -> int:
        """Distance from the expectation."""
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
            "Micro-batches of a rank and epoch",
            [cell for facts in modes for cell in cells(facts, "micro_batches", params.micro_batches)],
            unit="micro-batches",
            hint=_SIZES_HINT,
        ),
        _per_rank(
            "optimizer_steps",
            "Optimizer steps of an epoch",
            [cell for facts in modes for cell in cells(facts, "optimizer_steps", params.steps_per_epoch)],
            unit="steps",
            hint=_SIZES_HINT,
        ),
        gradient_syncs_check(params, modes),
    ]


_SIZES_HINT = (
    "Look at batch_size, world_size and train_size together, and whether every rank ended its epochs; "
    "the expectation follows from them and is never edited"
)


def cells(facts: ModeFacts, counted: str, expected: int) -> list[Cell]:
    """Return one count of every epoch and rank beside its expectation."""
    return [
        Cell(mode=facts.mode, epoch=epoch.epoch, rank=rank, counted=count, expected=expected)
        for epoch in facts.epochs
        for rank, count in enumerate(getattr(epoch, counted))
    ]


def samples_check(params: CifarParams, modes: Sequence[ModeFacts]) -> Check:
    """Return whether every rank drew its share, and all ranks together every training image exactly once an epoch."""
    check = _per_rank(
        "samples_per_rank",
        "Training images of a rank and epoch",
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
    """Return whether the hook counted what the mode takes, on every rank and in every epoch.

    `measured` and `limit` are synchronisations of an epoch, added up over the modes, at the epoch that is furthest off.
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
        title="Gradient synchronisations of an epoch",
        passed=not wrong and complete,
        measured=sum(cell.counted for cell in worst.values()),
        limit=sum(cell.expected for cell in worst.values()),
        relation=Relation.EQUAL,
        unit="synchronisations",
        detail=detail,
    )


def confusion_check(params: CifarParams, modes: Sequence[ModeFacts]) -> Check:
    """Return whether every confusion matrix counts every test image exactly once."""
    totals = {facts.mode: sum(map(sum, facts.test.confusion)) for facts in modes}
    worst = max(totals.values(), key=lambda total: abs(total - params.test_size))
    faults = [
        f"mode {facts.mode}: {len(facts.test.repeated)} test images counted twice, {len(facts.test.missing)} never"
        for facts in modes
        if facts.test.repeated or facts.test.missing
    ]
    detail = "; ".join(faults) or "every test image was counted exactly once, over all ranks"
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
    """Return whether every file a mode must leave is there and not empty."""
    faults = [fault for mode in artifacts for fault in mode.faulty()]
    expected = sum(len(mode.required) for mode in artifacts)
    return Check(
        name="artifacts",
        title="Artifacts present and not empty",
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
        f"mode {facts.mode}, epoch {epoch.epoch}: {epoch.distinct_ids} different images of {params.train_size}; "
        f"sampler duplicates: {repeated}"
    )


def _sync_cause(cell: Cell, params: CifarParams) -> str:
    if cell.counted == 0:
        return (
            ". No reduction was seen: the hook is not registered, or the loss went around DDP's forward "
            "(through `.module`), so that the ranks train alone"
        )
    if cell.mode == "no_sync" and cell.counted == cell.expected * params.accum_steps:
        return (
            f". That is one synchronisation per micro-batch, {params.accum_steps} times as many: likely the forward "
            "runs outside `no_sync` (DDP reads the flag in the forward pass), or `every` was used by mistake. "
            "The gradient is right all the same, so only the count can tell"
        )
    if cell.mode == "every" and cell.counted * params.accum_steps == cell.expected:
        return ". That is one synchronisation per optimizer step: `no_sync` was used by mistake"
    if cell.counted == 2 * cell.expected:
        return ". Exactly twice the expectation: the hook may count every reduction twice; see the second witness"
    return ". Look for a backward pass that is not the mode's, and compare with the second witness"
