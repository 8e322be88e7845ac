"""The facts a training stage passes to the audit: numbers as they were counted, without judgement."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from trainer.common.witness_facts import WindowEvidence
from trainer.contract.files import write_bytes_atomically
from trainer.contract.paths import RunPaths


class Facts(BaseModel):
    """Base: unknown fields are errors; non-finite numbers are stored by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class EpochFacts(Facts):
    """One epoch. Lists have one entry per rank."""

    epoch: int
    """Numbered from 1."""
    optimizer_steps: list[int]
    micro_batches: list[int]
    samples: list[int]
    gradient_syncs: list[int]
    repeated_ids: list[int]
    """Training images drawn more than once over all ranks (the first few)."""
    distinct_ids: int
    """Distinct training images drawn by all ranks together."""
    reduced_bytes: int
    """Gradient bytes rank 0 passed to the reduction."""
    buckets: int
    """Buckets rank 0 reduced."""
    communication_seconds: float
    """Time with an active reduction of rank 0, including waiting for slower ranks and overlap with backward."""
    seconds: float
    """Wall time of rank 0's training loop, without evaluation and checkpoints."""
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float


class SampledWindow(Facts):
    """One accumulation window of rank 0 that both hook and profiler have seen."""

    epoch: int
    hook_count: int
    """Synchronisations the communication hook counted in this window."""
    evidence: WindowEvidence
    """What the profiler saw."""


class StartFacts(Facts):
    """What must be equal in both modes; lists have one entry per rank."""

    weights: list[str]
    """SHA-256 of the initial parameters and buffers."""
    ids: list[str]
    """Chained SHA-256 of every id drawn, in order."""
    views: list[str]
    """Chained SHA-256 of every random crop and flip."""
    optimizer: str
    """Class and settings."""
    determinism: str
    """Determinism policy in effect."""
    data_lock: str


class TestFacts(Facts):
    """Scores of rank 0's final model on the test images, in FP32."""

    __test__ = False  # not for pytest

    loss: float
    accuracy: float
    confusion: list[list[int]]
    repeated: list[int]
    missing: list[int]


class MemoryFacts(Facts):
    """Peak bytes of one micro-batch, forward and backward, on rank 0, beyond what was allocated before it."""

    plain: int
    checkpointed: int


class RunFacts(Facts):
    """The environment in which the numbers were measured."""

    device: str
    backend: str
    world_size: int
    threads: int
    cpus: int
    precision: str
    torch: str
    gpus: list[str]


class ModeFacts(Facts):
    """Everything one mode's training stage found."""

    mode: str
    parameters: int
    gradient_bytes: int
    """Of one whole-model gradient."""
    epochs: list[EpochFacts]
    windows: list[SampledWindow]
    start: StartFacts
    test: TestFacts
    predicted: list[int]
    """Predicted class of every test image, by position in the test split."""
    memory: MemoryFacts
    run: RunFacts

    @property
    def seconds(self) -> float:
        """Wall time of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def communication_seconds(self) -> float:
        """Communication time of all epochs."""
        return sum(epoch.communication_seconds for epoch in self.epochs)

    def save(self, paths: RunPaths) -> None:
        """Write the facts for the audit stage. Raises OSError."""
        write_bytes_atomically(_file(paths, self.mode), self.model_dump_json(indent=1).encode(), within=paths.root)

    @classmethod
    def load(cls, paths: RunPaths, mode: str) -> Self:
        """Read what the training stage of `mode` wrote. Raises OSError, pydantic.ValidationError."""
        return cls.model_validate_json(_file(paths, mode).read_bytes())


def _file(paths: RunPaths, mode: str) -> Path:
    return paths.work / f"{mode}.json"
