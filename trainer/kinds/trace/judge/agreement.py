"""Checks `gradients_agree`, `parameters_agree`, `buffers_agree`: what must be the same on all ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.kinds.trace.judge.findings import Finding, Judged, listed, place_of, several
from trainer.kinds.trace.judge.reading import Digest, RankTrace
from trainer.kinds.trace.judge.records import ModelRecord, TrackedRecord, UnreducedRecord
from trainer.kinds.trace.judge.runs import Run

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
MOST_DIFFERING = 50
"""Moments whose differences are looked into tensor by tensor."""
SHARDED = ("fsdp2", "deepspeed")


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is not the same on all ranks."""

    step: int
    owner: int | None
    """Number of the model or optimizer."""
    name: str
    ranks: tuple[int, ...]
    """Ranks that differ from the lowest one."""


@dataclass(slots=True)
class Comparison:
    """What comparing the ranks gave."""

    moments: int = 0
    """How many times all ranks could be compared."""
    tensors: int = 0
    differences: tuple[Difference, ...] = ()
    steps: list[int] = field(default_factory=list)
    """At which something differs, the first ones."""


def compare(run: Run, what: str) -> Comparison:
    """Compare the digests of all ranks, moment by moment, tensors that every rank has."""
    moments: dict[tuple[int, int, bool], dict[RankTrace, Digest]] = {}
    for rank in run.trace.ranks:
        for digest in rank.digests:
            if digest.what == what:
                key = (digest.step, -1 if digest.owner is None else digest.owner, digest.last)
                moments.setdefault(key, {})[rank] = digest
    found = Comparison()
    differences: list[Difference] = []
    for _, digests in sorted(moments.items(), key=lambda item: item[0]):
        if len(digests) < 2 or len(digests) < len(run.trace.ranks):
            continue
        found.moments += 1
        first = next(iter(digests.values()))
        if all(digest.fingerprint == first.fingerprint for digest in digests.values()):
            found.tensors += first.tensors
        elif len(found.steps) < MOST_DIFFERING:
            count, other = _tensor_by_tensor(digests)
            found.tensors += count
            found.steps += [first.step] * bool(other)
            differences += other
    found.differences = tuple(differences)
    return found


def _tensor_by_tensor(digests: Mapping[RankTrace, Digest]) -> tuple[int, list[Difference]]:
    """Return how many tensors all ranks have at one moment, and those that differ."""
    values = {rank.rank: rank.values(digest) for rank, digest in digests.items()}
    lowest, digest = values[min(values)], next(iter(digests.values()))
    shared = [name for name in lowest if all(name in mine for mine in values.values())]
    apart = {name: tuple(rank for rank in sorted(values) if values[rank][name] != lowest[name]) for name in shared}
    found = [Difference(digest.step, digest.owner, name, ranks) for name, ranks in apart.items() if ranks]
    return len(shared), found


def _sharded(run: Run) -> list[str]:
    if run.engine not in SHARDED:
        return []
    return [f"With {run.engine} every rank holds its own part of gradients and parameters: they are not compared."]


def gradients(run: Run) -> Judged:
    """Judge the gradients that the optimizers saw."""
    if run.world_size < 2 or run.engine in SHARDED:
        return Judged.left_out("gradients_agree", *_sharded(run))
    unreduced = list(_unreduced(run))
    excused = {name for finding in unreduced for name in finding.measured["names"]}
    found = compare(run, "gradients")
    differences = [item for item in found.differences if item.name not in excused]
    findings = [*unreduced, *_differing("gradients_differ", "gradients_agree", "gradient", found, differences)]
    seen = found.tensors > 0
    return Judged(
        name="gradients_agree",
        findings=findings,
        seen=seen,
        detail=_compared(found, "gradients") if seen else "No gradients of all ranks could be compared.",
    )


def parameters(run: Run) -> Judged:
    """Judge the parameters."""
    if run.world_size < 2 or run.engine in SHARDED:
        return Judged.left_out("parameters_agree", *_sharded(run))
    excused = {name for finding in _unreduced(run) for name in finding.measured["names"]}
    found = compare(run, "parameters")
    differences = [item for item in found.differences if item.name not in excused]
    seen = found.tensors > 0
    return Judged(
        name="parameters_agree",
        findings=list(_differing("parameters_differ", "parameters_agree", "parameter", found, differences)),
        seen=seen,
        detail=_compared(found, "parameters") if seen else "No wrapped model was seen, so no parameters were compared.",
    )


def buffers(run: Run) -> Judged:
    """Judge buffers and how often batch norms were updated."""
    if not run.models:
        return Judged.left_out("buffers_agree", "No wrapped model was seen, so no buffers were compared.")
    found = compare(run, "buffers")
    twice = list(_moved_twice(run))
    alone = run.world_size < 2
    if alone and not any(rank.all(TrackedRecord) for rank in run.trace.ranks):
        return Judged.left_out("buffers_agree")
    norms = {number: _statistics(model) for number, model in run.models.items()}
    plain = [item for item in found.differences if item.name in norms.get(item.owner or 0, ())]
    other = [item for item in found.differences if item not in plain]
    findings = [
        *_differing("buffers_differ", "buffers_agree", "buffer", found, other),
        *_differing("buffers_differ", "buffers_agree", "batch norm statistic", found, plain, severity="note"),
        *twice,
    ]
    seen = alone or found.moments > 0
    detail = _compared(found, "buffers") if found.tensors else "the models have no buffers"
    return Judged(
        name="buffers_agree",
        findings=findings,
        seen=seen,
        detail=detail if seen else "No buffers of all ranks could be compared.",
    )


def _statistics(model: ModelRecord) -> frozenset[str]:
    return frozenset(f"{name}.{leaf}" if name else leaf for name in model.batch_norms for leaf in STATISTICS)


def _compared(found: Comparison, what: str) -> str:
    return f"{found.tensors:,} {what} compared bit for bit at {several(found.moments, 'moment')}"


SUGGESTIONS = {
    "gradients_differ": (
        "Call the DDP module, not model.module, in every forward, and run the last micro-batch outside no_sync()."
    ),
    "parameters_differ": "Once DDP has wrapped the model, change parameters only by optimizer steps, on all ranks.",
    "buffers_differ": "Use SyncBatchNorm, or broadcast_buffers=True and save and evaluate the buffers of rank 0.",
}


def _differing(
    name: str, check: str, noun: str, found: Comparison, differences: Sequence[Difference], *, severity: str = "wrong"
) -> Iterator[Finding]:
    if not differences:
        return
    first = differences[0]
    same_step = [item for item in differences if item.step == first.step]
    steps = sorted({item.step for item in differences})
    yield Finding(
        name=name,
        severity=severity,
        check=check,
        detail=(
            f"First at step {first.step:,}: {noun} {first.name} of rank {listed(first.ranks)} differs from the lowest "
            f"rank's; {len(same_step):,} of that step differ. Differences at {several(len(steps), 'step')} of "
            f"{found.moments:,} compared."
        ),
        windows=len(steps),
        measured={
            "step": first.step,
            "name": first.name,
            "ranks": list(first.ranks),
            "differing": len(same_step),
            "moments": found.moments,
        },
        suggestion=SUGGESTIONS[name],
    )


def _unreduced(run: Run) -> Iterator[Finding]:
    first = run.first
    if first is None or run.world_size < 2:
        return
    for record in first.all(UnreducedRecord):
        optimizer = run.optimizers.get(record.optimizer)
        place = place_of(first, optimizer.site if optimizer else None)
        yield Finding(
            name="unreduced_parameters",
            severity="wrong",
            check="gradients_agree",
            detail=(
                f"The optimizer moves {several(record.count, 'parameter')} that no DDP model reduces: "
                f"{listed(record.names)}. Every rank trains its own version of them."
            ),
            places=[place] if place else [],
            measured={"count": record.count, "names": list(record.names)},
            suggestion="Create these parameters and set requires_grad before DistributedDataParallel wraps the model.",
        )


def _moved_twice(run: Run) -> Iterator[Finding]:
    if run.first is None:
        return
    for number, model in run.models.items():
        records = [item for item in run.first.all(TrackedRecord) if item.model == number]
        if len(records) < 2:
            continue
        early, late = records[0], records[-1]
        forwards = late.forwards - early.forwards
        moved = {name: late.values[name] - early.values[name] for name in late.values if name in early.values}
        twice = [name.removesuffix(".num_batches_tracked") for name, count in moved.items() if count == 2 * forwards]
        if forwards <= 0 or not twice:
            continue
        measured: dict[str, Any] = {"layers": twice[:20], "forwards": forwards, "updates": 2 * forwards}
        place = place_of(run.first, model.site)
        yield Finding(
            name="buffers_moved_twice",
            severity="wrong",
            check="buffers_agree",
            detail=(
                f"Batch norm {listed(twice)} updated its running statistics {2 * forwards:,} times in {forwards:,} "
                "forwards, as when activation checkpointing runs the forward again. A layer that is meant to run twice "
                "per forward looks the same."
            ),
            places=[place] if place else [],
            measured=measured,
            suggestion="Leave batch norm layers out of the checkpointed part.",
        )
