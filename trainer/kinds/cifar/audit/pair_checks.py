"""Checks for a run of both modes: `no_sync` was the only difference, and what it changed."""

from trainer.contract.result import Check, Relation
from trainer.kinds.cifar.facts import ModeFacts
from trainer.kinds.cifar.params import CifarParams

STARTS = {
    "weights": "initial weights and buffers",
    "ids": "ids drawn",
    "views": "random crops and flips",
    "optimizer": "optimizer",
    "determinism": "determinism policy",
    "data_lock": "data",
}


def pair_checks(params: CifarParams, every: ModeFacts, no_sync: ModeFacts) -> list[Check]:
    """Return the checks that compare the modes."""
    return [
        same_start_check(every, no_sync),
        same_steps_check(every, no_sync),
        sync_ratio_check(params, every, no_sync),
    ]


def same_start_check(every: ModeFacts, no_sync: ModeFacts) -> Check:
    """Check by digests that everything but the mode was equal; all ranks must have started with equal weights."""
    different = [text for field, text in STARTS.items() if getattr(every.start, field) != getattr(no_sync.start, field)]
    if every.run.precision != no_sync.run.precision:
        different.append(f"precision ({every.run.precision}, {no_sync.run.precision})")
    for facts in (every, no_sync):
        if len(set(facts.start.weights)) > 1:
            different.append(f"initial weights between the ranks of mode {facts.mode}")
    compared = len(STARTS) + 1
    detail = (
        f"different: {', '.join(different)}"
        if different
        else (
            f"equal in both modes: {', '.join(STARTS.values())}, precision; weights {every.start.weights[0][:12]}, "
            f"ids of rank 0 {every.start.ids[0][:12]}"
        )
    )
    return Check(
        name="same_start",
        title="Both modes start with the same weights and draw the same data",
        passed=not different,
        measured=len(different),
        limit=0,
        relation=Relation.EQUAL,
        unit=f"differences in {compared} comparisons",
        detail=detail,
    )


def same_steps_check(every: ModeFacts, no_sync: ModeFacts) -> Check:
    """Check that both modes took the same number of optimizer steps in every epoch, on every rank."""
    rows = [[epoch.optimizer_steps for epoch in facts.epochs] for facts in (every, no_sync)]
    totals = [sum(map(sum, counts)) for counts in rows]
    return Check(
        name="same_steps",
        title="Both modes take the same number of optimizer steps",
        passed=rows[0] == rows[1] and totals[0] > 0,
        measured=totals[1],
        limit=totals[0],
        relation=Relation.EQUAL,
        unit="steps over all epochs and ranks (no_sync against every)",
        detail="equal in every epoch and on every rank" if rows[0] == rows[1] else f"per epoch and rank: {rows}",
    )


def sync_ratio_check(params: CifarParams, every: ModeFacts, no_sync: ModeFacts) -> Check:
    """Check that `every` synchronised exactly `accum_steps` times as often, in every epoch and on every rank."""
    pairs = [
        (many, few)
        for left, right in zip(every.epochs, no_sync.epochs, strict=False)
        for many, few in zip(left.gradient_syncs, right.gradient_syncs, strict=False)
    ]
    many, few = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    exact = all(left == params.accum_steps * right and right > 0 for left, right in pairs)
    complete = len(every.epochs) == len(no_sync.epochs) == params.epochs
    return Check(
        name="sync_ratio",
        title="Synchronisations, every divided by no_sync",
        passed=exact and complete,
        measured=many / few if few else None,
        limit=params.accum_steps,
        relation=Relation.EQUAL,
        unit="times",
        detail=f"{many} / {few}, all epochs and ranks; a window has {params.accum_steps} micro-batches",
    )
