"""What a diagnosis starts from: the gradient of every part of a window, and the gradients that the ranks ended with.

Gradients are grouped by parameter, as float64 vectors: flattened, or sketched (one linear map for all parts and ranks
of a step). The engine in `trainer.forensics` only combines them; it never calls a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Vectors = Mapping[str, Tensor]
"""Parameter name -> float64 vector on the CPU; the sizes are the same for all parts and ranks of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One summand of the window's gradient: a sum over one micro-batch of one rank."""

    kind: Literal["units", "padding", "extra"]
    """Its supervised units, its padding units, or its auxiliary loss."""
    rank: int
    micro_batch: int
    """0, 1, 2 … within the window."""
    units: float
    """Units in the sum; of an auxiliary loss 1."""
    gradient: Vectors
    """Of the sum, without any division."""
    padding: float = 0.0
    """Padding units of the micro-batch, whether or not their own gradient is known."""
    digest: str = ""
    """Of the content; two parts with the same digest hold the same samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened to all gradients of a rank from the end of a backward pass to the next one, or to the end."""

    factor: float | None
    """By which they were multiplied: 1 if they did not change, 0 if they were cleared, None if in another way."""
    norm: float
    """Euclidean norm of all of them afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """One step, measured at the same parameters everywhere."""

    step: int
    world_size: int
    parts: Sequence[Part]
    observed: Sequence[Vectors]
    """Per rank, the gradient just before the optimizer step."""
    before: Sequence[Vectors] = ()
    """Per rank, the gradient that was left from the previous step; empty in the first step."""
    extra_reduction: Literal["mean", "sum"] = "mean"
    """How the objective combines auxiliary losses over ranks and micro-batches."""
    reductions: Sequence[Sequence[int]] = ()
    """Per rank, the 0-based backward passes with which a complete gradient reduction ended, in order; empty where
    they are not visible."""
    backwards: Sequence[int] = ()
    """Per rank, the backward passes; empty where they are not visible."""
    changes: Sequence[Sequence[Change]] = ()
    """Per rank, what followed each backward pass; empty where it is not visible."""
    norms: Sequence[float] = ()
    """Per rank, the Euclidean norm of the whole observed gradient, which a sketch does not keep; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferChange:
    """A buffer of the model (a running statistic, a counter) before and after a window."""

    name: str
    rank: int
    step: int
    once: Tensor
    """Where one forward pass per micro-batch leads, from the same start; float64, flattened."""
    twice: Tensor
    """Where two forward passes per micro-batch lead."""
    observed: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything measured about the code under audit."""

    steps: Sequence[StepEvidence]
    tolerance: float
    """Relative, of a weight: 1e-6 for float64 gradients, larger for float32."""
    buffers: Sequence[BufferChange] = ()
    batch_statistics: Sequence[str] = field(default=())
    """Layers whose output for a sample depends on the rest of its batch (BatchNorm in training mode)."""
    unit: str = "unit"
    """What the objective counts, in the singular: token, sequence, sample."""
    unseen: Sequence[str] = field(default=())
    """Sentences about what could not be measured."""
