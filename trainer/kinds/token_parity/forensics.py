"""The diagnosis of a token-parity run: the gradient of every micro-batch by itself, and what the ranks' are made of."""

from collections.abc import Iterator, Sequence

import torch

from trainer.common.window import gradients
from trainer.contract.diagnosis import Diagnosis
from trainer.forensics.diagnose import diagnose
from trainer.forensics.evidence import Evidence as Measured
from trainer.forensics.evidence import Part, StepEvidence
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
    found = diagnose(_measured(evidence, padding=False))
    if found.status == "unexplained":
        # Padding costs as many passes again, so its gradients are computed only where they may explain something.
        found = diagnose(_measured(evidence, padding=True))
    return found


def _measured(evidence: Evidence, *, padding: bool) -> Measured:
    shape = evidence.params.shape
    batches = window_batches(evidence.plan["window"], shape, torch.device("cpu"))
    model = build_model(shape.seed).double()
    sketch = Sketch(buckets=4 * (2 * sum(map(len, batches)) + len(batches)) + 64)
    left = [found[LEFT_OVER] for found in evidence.gradients if LEFT_OVER in found]
    windows = [report["windows"][AUDITED] for report in evidence.reports]
    return Measured(
        steps=[
            StepEvidence(
                step=1,
                world_size=len(batches),
                parts=list(_parts(model, batches, evidence.plan["window"], sketch, padding=padding)),
                observed=[sketch.of(found[AUDITED]) for found in evidence.gradients],
                before=[sketch.of(found) for found in left],
                reductions=[window.get("reductions", []) for window in windows],
            )
        ],
        tolerance=TOLERANCE,
        unit="token",
    )


def _parts(
    model: TokenModel,
    batches: Sequence[Sequence[Batch]],
    window: Sequence[Sequence[Sequence[int]]],
    sketch: Sketch,
    *,
    padding: bool,
) -> Iterator[Part]:
    for rank, row in enumerate(batches):
        for place, batch in enumerate(row):
            model.zero_grad(set_to_none=True)
            loss_sum(model, batch).backward()  # type: ignore[no-untyped-call]
            yield Part(
                kind="units",
                rank=rank,
                micro_batch=place,
                units=batch.tokens,
                gradient=sketch.of(gradients(model)),
                padding=padding_of(batch),
                digest=",".join(map(str, window[rank][place])),
            )
            if padding and padding_of(batch):
                model.zero_grad(set_to_none=True)
                padding_loss_sum(model, batch).backward()  # type: ignore[no-untyped-call]
                yield Part(
                    kind="padding",
                    rank=rank,
                    micro_batch=place,
                    units=padding_of(batch),
                    gradient=sketch.of(gradients(model)),
                )


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
