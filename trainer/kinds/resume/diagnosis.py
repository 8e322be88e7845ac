"""Why a resumed trajectory ended in a different state: the first recorded cause, searched in a fixed order.

Optimizer, configuration, data lock, position in the data, generators of every rank; only then DDP's bucket layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.kinds.resume.differences import first_other_ids, first_other_loss
from trainer.kinds.resume.evidence import Evidence

OPTIMIZER, CONFIG, DATA_LOCK = "optimizer", "config", "data lock"
PLAN_POSITION, PER_RANK_RNG, MODEL = "plan position", "per-rank RNG", "model"
BUCKET_LAYOUT, UNKNOWN = "bucket layout", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first recorded difference."""

    name: str
    text: str


def diagnose(left: Evidence, right: Evidence) -> Cause:
    """Return the first cause for which there is evidence that `right` diverged from `left`.

    For trajectories that differ; equal ones give UNKNOWN.
    """
    return next(_causes(left, right))


def _causes(left: Evidence, right: Evidence) -> Iterator[Cause]:
    yield from _restored(right, OPTIMIZER, ("optimizer", "scheduler"))
    yield from _headers(left, right)
    yield from _restored(right, PLAN_POSITION, ("sampler",))
    yield from _ids(left, right)
    yield from _restored(right, PER_RANK_RNG, ("rng",))
    yield from _restored(right, MODEL, ("model",))
    yield from _layout(left, right)
    yield Cause(
        name=UNKNOWN,
        text="everything recorded was restored as it was saved, and the ids are equal: the difference is not in "
        "optimizer, configuration, data, generators and bucket layout",
    )


def _restored(right: Evidence, cause: str, parts: tuple[str, ...]) -> Iterator[Cause]:
    """Yield `cause` for every part whose state at the start of a process differs from its saved state."""
    for rank, own in enumerate(right.ranks):
        saved = {entry["step"]: entry["digests"] for entry in own["sampler"]["saves"]}
        for start in own["sampler"]["starts"]:
            expected = saved.get(start["step"], start["digests"])  # nothing was saved at the beginning of a training
            for part in parts:
                found = start["digests"][part]
                if found != expected[part]:
                    yield Cause(
                        name=cause,
                        text=f"rank {rank} continued after update {start['step']} with a different {part} state than "
                        f"was saved there ({found[:12]} instead of {expected[part][:12]})",
                    )


def _headers(left: Evidence, right: Evidence) -> Iterator[Cause]:
    ours, theirs = left.manifest.header, right.manifest.header
    for field in sorted((ours.config.keys() | theirs.config.keys()) - {"fault"}):  # must be found by its effect
        if ours.config.get(field) != theirs.config.get(field):
            text = (
                f"{field} is {ours.config.get(field)!r} in {left.name} and {theirs.config.get(field)!r} in {right.name}"
            )
            yield Cause(name=CONFIG, text=text)
    if ours.data_lock != theirs.data_lock:
        yield Cause(
            name=DATA_LOCK, text=f"{ours.data_lock[:12]} in {left.name}, {theirs.data_lock[:12]} in {right.name}"
        )


def _ids(left: Evidence, right: Evidence) -> Iterator[Cause]:
    for rank in range(len(left.ranks)):
        step = first_other_ids(left, right, rank)
        if step is not None:
            yield Cause(name=PLAN_POSITION, text=f"rank {rank} drew different ids in update {step}")


def _layout(left: Evidence, right: Evidence) -> Iterator[Cause]:
    config: dict[str, Any] = left.manifest.header.config
    world_size = left.manifest.header.world_size
    if config.get("variant") == "correct" or world_size < 3:
        return  # added in rank order, or only two terms: the position in a bucket cannot change a sum
    ours, theirs = (side.ranks[0]["sampler"]["layouts"] for side in (left, right))
    step = next((index + 1 for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    parted = first_other_loss(left, right)
    if step is not None and (parted is None or parted > step):
        yield Cause(
            name=BUCKET_LAYOUT,
            text=f"update {step} was reduced in buckets {ours[step - 1]} uninterrupted and {theirs[step - 1]} after "
            f"the restart, because DDP rebuilds its buckets after the first update of a process; with {world_size} "
            "ranks the order of addition depends on it. Resuming is not broken: add the gradients in rank order",
        )
