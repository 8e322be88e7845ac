"""The linear system of one step: every part's gradient is a column, every rank's gradient a right-hand side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from trainer.forensics.evidence import StepEvidence, Vectors

Kind = Literal["units", "padding", "extra", "stale"]
SAME = 1e-6
"""Left-over gradients that differ by less than this share are one column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One summand whose weight is unknown."""

    kind: Kind
    rank: int
    """-1 for a left-over gradient that all ranks share."""
    micro_batch: int = 0
    units: float = 1.0


@dataclass(frozen=True)
class System:
    """Columns and right-hand sides of one step, reduced per parameter to a triangle.

    A QR factor of [columns, right-hand sides] has the same least-squares solutions and residuals as the full matrix, so
    parameters can be combined into groups by stacking their triangles, however large they are.
    """

    step: StepEvidence
    columns: Sequence[Column]
    blocks: Mapping[str, Tensor]
    """Parameter -> float64 [rows, columns + ranks]."""
    rows: Mapping[str, int]
    """Parameter -> components of its vectors."""
    _norms: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, step: StepEvidence) -> "System":
        """Build the system of a step. Raises ValueError if vectors of a parameter differ in size."""
        found = list(_columns(step))
        blocks, rows = {}, {}
        for name, first in step.observed[0].items():
            vectors = [vectors.get(name, torch.zeros_like(first)) for _, vectors in found]
            sides = [vectors[name] for vectors in step.observed]
            matrix = torch.stack([*vectors, *sides], dim=1).double()
            rows[name] = matrix.shape[0]
            blocks[name] = triangle(matrix)
        return cls(step=step, columns=[column for column, _ in found], blocks=blocks, rows=rows)

    @property
    def names(self) -> list[str]:
        """Parameters, in the model's order."""
        return list(self.blocks)

    @property
    def ranks(self) -> int:
        """Number of right-hand sides."""
        return len(self.step.observed)

    @cached_property
    def norm(self) -> float:
        """The largest norm of a rank's gradient, or of what the objective would give; 0 if everything is 0."""
        whole = torch.cat([self.blocks[name] for name in self.names])
        norms = torch.linalg.vector_norm(whole[:, len(self.columns) :], dim=0)
        right = torch.linalg.vector_norm(whole[:, : len(self.columns)] @ self.expected)
        return float(max(norms.max(), right))

    @cached_property
    def expected(self) -> Tensor:
        """Weight of every column in the objective, float64 [columns]."""
        units = sum(column.units for column in self.columns if column.kind == "units")
        extras = sum(column.kind == "extra" for column in self.columns)
        extra = 1.0 if self.step.extra_reduction == "sum" else 1.0 / max(1, extras)
        known = {"units": 1.0 / units if units else 0.0, "extra": extra}
        return torch.tensor([known.get(column.kind, 0.0) for column in self.columns], dtype=torch.float64)

    def places(self, kinds: Sequence[Kind]) -> list[int]:
        """Return the positions of the columns of these kinds."""
        return [place for place, column in enumerate(self.columns) if column.kind in kinds]

    def matrix(self, names: Sequence[str], places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return columns [rows, places] and right-hand sides [rows, ranks] of the parameters `names`."""
        whole = triangle(torch.cat([self.blocks[name] for name in names]))
        return whole[:, list(places)], whole[:, len(self.columns) :]


def triangle(matrix: Tensor) -> Tensor:
    """Return a matrix with the same normal equations and at most as many rows as columns."""
    if matrix.shape[0] <= matrix.shape[1]:
        return matrix
    factor: Tensor = torch.linalg.qr(matrix, mode="r").R
    return factor


def _columns(step: StepEvidence) -> Iterator[tuple[Column, Vectors]]:
    for part in step.parts:
        yield (
            Column(kind=part.kind, rank=part.rank, micro_batch=part.micro_batch, units=part.units),
            part.gradient,
        )
    if not step.before:
        return
    shared = all(_close(vectors, step.before[0]) for vectors in step.before)
    for rank, vectors in enumerate(step.before[:1] if shared else step.before):
        yield Column(kind="stale", rank=-1 if shared else rank), vectors


def _close(mine: Vectors, other: Vectors) -> bool:
    return all(
        bool(torch.linalg.vector_norm(mine[name] - value) <= SAME * torch.linalg.vector_norm(value))
        for name, value in other.items()
    )
