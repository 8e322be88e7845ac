"""The output of the earlier stages of a gradient audit, read once for checks, panels and the diagnosis."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from trainer.common.context import StageContext
from trainer.forensics.evidence import BufferChange, Change, Evidence, Part, StepEvidence
from trainer.kinds.gradient_audit.comparison import Comparison, merged
from trainer.kinds.gradient_audit.handover import Handover, read_document
from trainer.kinds.gradient_audit.params import GradientAuditParams
from trainer.targets.members import Target
from trainer.targets.registry import load_target

TOLERANCES = {"float64": 1e-6, "float32": 1e-4}
"""Relative tolerance of a weight, by the type in which its gradients were computed."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured."""

    params: GradientAuditParams
    target: Target
    inspection: dict[str, Any]
    reference: list[dict[str, Any]]
    """By step."""
    reports: list[dict[str, Any]]
    """By rank."""
    replays: list[dict[str, Any]]
    """By rank; empty if everything matched."""

    @classmethod
    def load(cls, context: StageContext) -> "Measured":
        """Read the files of the earlier stages. Raises OSError if a stage did not write its file."""
        handover, ranks = Handover(context.paths), range(context.params.world_size)
        replayed = handover.evidence(0).exists()
        return cls(
            params=context.params,
            target=load_target(context.params.target),
            inspection=read_document(handover.inspection),
            reference=read_document(handover.facts)["steps"],
            reports=[read_document(handover.report(rank)) for rank in ranks],
            replays=[torch.load(handover.evidence(rank), weights_only=True) for rank in ranks] if replayed else [],
        )

    @property
    def windows(self) -> list[dict[str, Any]]:
        """Digests and counts by step, as [rank][micro-batch]."""
        found: list[dict[str, Any]] = self.inspection["windows"]
        return found

    @property
    def is_ddp(self) -> bool:
        """Whether DDP reduces the gradients, so that reductions can be counted."""
        return all(report["ddp"] for report in self.reports)

    @cached_property
    def parity(self) -> Comparison:
        """The worst of every parameter over all ranks and steps."""
        return merged([item for row in self.comparisons for item in row])

    @cached_property
    def comparisons(self) -> list[list[Comparison]]:
        """[step][rank]"""
        return self._read("comparison")

    @cached_property
    def apart(self) -> Comparison:
        """The largest distance between any rank's gradient and rank 0's."""
        return merged([item for row in self._read("apart") for item in row])

    @property
    def counts(self) -> list[list[list[float]]]:
        """Units as [step][rank][micro-batch]."""
        return [window["count"] for window in self.windows]

    @property
    def equal_counts(self) -> bool:
        """Whether every micro-batch of every step has the same number of units."""
        return all(len({count for row in rows for count in row}) == 1 for rows in self.counts)

    @property
    def batch_statistics(self) -> list[str]:
        """Layers with batch statistics."""
        found: list[str] = self.reports[0]["batch_statistics"]
        return found

    @cached_property
    def wrong(self) -> dict[str, Comparison]:
        """By wrong rule, its gradient: the worst of every parameter over all steps."""
        names = self.reference[0]["wrong"]
        return {name: merged([Comparison.read(item["wrong"][name]) for item in self.reference]) for name in names}

    def agrees(self, name: str) -> bool:
        """Whether a wrong rule gives the objective's gradient in every step."""
        return all(name in item["agree"] for item in self.reference)

    @property
    def right_in_float64(self) -> bool:
        """Whether a replay in float64 matched, so that the evidence comes from a second one, in the run's own type."""
        return bool(self.replays) and bool(self.replays[0]["in_float64"])

    @cached_property
    def evidence(self) -> Evidence | None:
        """What a diagnosis starts from; None if nothing was replayed because everything matched."""
        if not self.replays:
            return None
        precise = self.replays[0]["dtype"]
        why = "In float64 the same windows match" if self.right_in_float64 else "The code does not run in float64"
        fallback = f"{why}; the weights were solved from {precise} gradients."
        return Evidence(
            steps=[self._step(step) for step in range(len(self.replays[0]["steps"]))],
            tolerance=TOLERANCES[precise],
            buffers=[_buffer(self.reports[0]["rank"], move) for move in self.reports[0]["moves"]],
            batch_statistics=self.batch_statistics,
            unit=self.target.unit,
            unseen=[] if precise == "float64" else [fallback],
        )

    def _step(self, step: int) -> StepEvidence:
        rows = [replay["steps"][step] for replay in self.replays]
        seen = self.is_ddp and all(row["reductions"] is not None for row in rows)
        return StepEvidence(
            step=step,
            world_size=len(rows),
            parts=[Part(**part) for row in rows for part in row["parts"]],
            observed=[row["observed"] for row in rows],
            before=[replay["steps"][step - 1]["observed"] for replay in self.replays] if step else (),
            extra_reduction="sum" if self.target.extra_reduction == "sum" else "mean",
            reductions=[row["reductions"] for row in rows] if seen else (),
            backwards=[row["backwards"] for row in rows],
            norms=[row["norm"] for row in rows],
            changes=[[Change(factor=factor, norm=norm) for factor, norm in row["changes"]] for row in rows],
        )

    def _read(self, key: str) -> list[list[Comparison]]:
        steps = range(len(self.windows))
        return [[Comparison.read(report["steps"][step][key]) for report in self.reports] for step in steps]


def _buffer(rank: int, move: list[Any]) -> BufferChange:
    name, step, *places = move
    once, twice, observed = (torch.tensor(place, dtype=torch.float64) for place in places)
    return BufferChange(name=name, rank=rank, step=step, once=once, twice=twice, observed=observed)
