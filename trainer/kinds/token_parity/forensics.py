"""The diagnosis of a token-parity run: the gradient of every micro-batch by itself, and what the ranks' are made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.common.window import gradients
from trainer.contract.diagnosis import Diagnosis
from trainer.forensics.diagnose import diagnose
from trainer.forensics.evidence import Evidence as Measured
from trainer.forensics.evidence import Part, StepEvidence, Vectors
from trainer.forensics.sketch import Sketch
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.handover import AUDITED, LEFT_OVER
from trainer.kinds.token_parity.reference import window_batches
from trainer.kinds.token_parity.variants import padding_loss_sum, padding_of
from trainer.tokens.batches import Batch, loss_sum
from trainer.tokens.model import TokenModel, build_model

TOLERANCE = 1e-4
"""Relative, of a weight: the ranks compute in float32."""
MOST_CELLS = 64
"""Micro-batches on all ranks up to which their weights are solved; each costs a pass in float64."""


def diagnosis(evidence: Evidence) -> Diagnosis:
    """Return which mistake explains the ranks' gradients of the audited window."""
    if sum(map(len, evidence.plan["token_counts"])) > MOST_CELLS:
        return _too_many(evidence)
    cells = Cells.of(evidence)
    step = _step(evidence, cells)
    found = diagnose(Measured(steps=[step], tolerance=TOLERANCE, unit="token"))
    if found.status == "unexplained":
        # Padding costs as many passes again, so its gradients are computed only where they may explain something.
        step = replace(step, parts=[*step.parts, *cells.padding()])
        found = diagnose(Measured(steps=[step], tolerance=TOLERANCE, unit="token"))
    return found


def _step(evidence: Evidence, cells: "Cells") -> StepEvidence:
    left = [found[LEFT_OVER] for found in evidence.gradients if LEFT_OVER in found]
    windows = [report["windows"][AUDITED] for report in evidence.reports]
    return StepEvidence(
        step=1,
        world_size=len(cells.batches),
        parts=list(cells.units()),
        observed=[cells.sketch.of(found[AUDITED]) for found in evidence.gradients],
        before=[cells.sketch.of(found) for found in left],
        reductions=[window.get("reductions", []) for window in windows],
    )


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The micro-batches of the audited window, in one process and in float64."""

    model: TokenModel
    batches: Sequence[Sequence[Batch]]
    """As [rank][micro-batch]."""
    window: Sequence[Sequence[Sequence[int]]]
    """Ids of their sequences, likewise."""
    sketch: Sketch

    @classmethod
    def of(cls, evidence: Evidence) -> "Cells":
        """Build the window of a run again."""
        shape = evidence.params.shape
        batches = window_batches(evidence.plan["window"], shape, torch.device("cpu"))
        return cls(
            model=build_model(shape.seed).double(),
            batches=batches,
            window=evidence.plan["window"],
            sketch=Sketch(buckets=4 * (2 * sum(map(len, batches)) + len(batches)) + 64),
        )

    def units(self) -> Iterator[Part]:
        """Yield the gradient of every micro-batch's tokens."""
        for rank, place, batch in self._all():
            yield Part(
                kind="units",
                rank=rank,
                micro_batch=place,
                units=batch.tokens,
                gradient=self._gradient(loss_sum(self.model, batch)),
                padding=padding_of(batch),
                digest=",".join(map(str, self.window[rank][place])),
            )

    def padding(self) -> Iterator[Part]:
        """Yield the gradient of every micro-batch's padding, where it has any."""
        for rank, place, batch in self._all():
            if padding_of(batch):
                yield Part(
                    kind="padding",
                    rank=rank,
                    micro_batch=place,
                    units=padding_of(batch),
                    gradient=self._gradient(padding_loss_sum(self.model, batch)),
                )

    def _all(self) -> Iterator[tuple[int, int, Batch]]:
        for rank, row in enumerate(self.batches):
            for place, batch in enumerate(row):
                yield rank, place, batch

    def _gradient(self, loss: Tensor) -> Vectors:
        self.model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        return self.sketch.of(gradients(self.model))


def _too_many(evidence: Evidence) -> Diagnosis:
    cells = sum(map(len, evidence.plan["token_counts"]))
    right = evidence.audited.violations == 0
    return Diagnosis(
        status="clean" if right else "unexplained",
        causes=[],
        weights=None,
        residual=None,
        suggestion=""
        if right
        else f"Run with at most {MOST_CELLS // evidence.params.world_size} micro-batches per rank.",
        reasoning=[f"The window has {cells} micro-batches; weights are solved for at most {MOST_CELLS}."],
    )
