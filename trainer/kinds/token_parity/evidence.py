"""The output of the earlier stages of a run, read once for checks and panels."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trainer.common.context import StageContext
from trainer.contract.normalisation import Cell, Window
from trainer.kinds.token_parity.comparison import Comparison, compare
from trainer.kinds.token_parity.handover import (
    AUDITED,
    LOCALLY_EMPTY,
    MEAN_OF_MEANS,
    RANK_MEAN,
    Handover,
    read_document,
)
from trainer.kinds.token_parity.params import TokenParityParams

DETECTABLE_ATOL, DETECTABLE_RTOL = 1e-6, 1e-4
"""Two rules whose difference is within FP32 rounding agree on the window, whatever the requested tolerance."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured."""

    params: TokenParityParams
    plan: dict[str, Any]
    worked_example: list[dict[str, Any]]
    reference: dict[str, Any]
    reports: list[dict[str, Any]]
    """By rank."""
    gradients: list[dict[str, dict[str, Tensor]]]
    """By rank, then by window."""
    training: dict[str, Any] | None

    @classmethod
    def load(cls, context: StageContext) -> "Evidence":
        """Read the files of the earlier stages. Raises OSError if a stage did not write its file."""
        handover, ranks = Handover(context.paths), range(context.params.world_size)
        trained = context.params.updates > 1
        return cls(
            params=context.params,
            plan=read_document(handover.plan),
            worked_example=read_document(handover.worked_example),
            reference=torch.load(handover.reference, weights_only=True),
            reports=[read_document(handover.report(rank)) for rank in ranks],
            gradients=[torch.load(handover.gradients(rank), weights_only=True) for rank in ranks],
            training=read_document(handover.training) if trained else None,
        )

    @cached_property
    def audited(self) -> Comparison:
        """The audited rule on the planned window."""
        return self._compare(AUDITED, AUDITED)

    @cached_property
    def rank_mean(self) -> Comparison:
        """The negative control: each rank divides by its own count."""
        return self._compare(RANK_MEAN, AUDITED)

    @cached_property
    def mean_of_means(self) -> Comparison:
        """The other wrong rule: every micro-batch has the same weight."""
        return self._compare(MEAN_OF_MEANS, AUDITED)

    @cached_property
    def locally_empty(self) -> Comparison:
        """The audited rule on the window in which one rank has no target."""
        return self._compare(LOCALLY_EMPTY, LOCALLY_EMPTY)

    @cached_property
    def measured_window(self) -> Window:
        """Measured counts and loss sums of the planned window, as cells[rank][micro-batch]."""
        windows = [report["windows"][AUDITED] for report in self.reports]
        return [
            [
                Cell(tokens=tokens, total=float(total))
                for tokens, total in zip(found["tokens"], found["sums"], strict=True)
            ]
            for found in windows
        ]

    def rules_agree(self, window: str) -> bool:
        """Whether a wrong rule's gradient equals the correct one on this window, within FP32 tolerance."""
        found = compare(
            self.reference[AUDITED],
            [gradients[window] for gradients in self.gradients],
            atol=DETECTABLE_ATOL,
            rtol=DETECTABLE_RTOL,
        )
        return found.violations == 0

    def _compare(self, window: str, reference: str) -> Comparison:
        return compare(
            self.reference[reference],
            [gradients[window] for gradients in self.gradients],
            atol=self.params.atol,
            rtol=self.params.rtol,
        )
