"""Records of a traced rank as checked types; docs/trace-files.md describes them. Nothing here trusts what it reads."""

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from trainer.contract.events import NON_FINITE

LARGEST = 2**63 - 1


def _number(value: Any) -> Any:
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def _moderate(value: float) -> float:
    """Refuse finite numbers so large that sums of them overflow."""
    if math.isfinite(value) and abs(value) > MOST:
        raise ValueError(f"larger than {MOST}")
    return value


MOST = 1e40
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Name = Annotated[str, Field(max_length=512)]
Path = Annotated[str, Field(max_length=4096)]
Number = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_moderate), BeforeValidator(_number)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
Moment = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e11)]
Span = tuple[Moment, Moment]
Place = tuple[Path, Count]
Digests = dict[Name, Annotated[str, Field(max_length=512)]]
Names = Annotated[list[Name], Field(max_length=10_000)]


class Part(BaseModel):
    """Base: unknown fields are ignored, types are strict."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class RankRecord(Part):
    """Who wrote the file."""

    rank: Count
    world_size: Annotated[int, Field(ge=1, le=1_000_000)]
    backend: Name = ""
    pid: Count = 0
    command: list[Path] = []
    cwd: Path = ""
    versions: dict[Name, Name] = {}
    seed: int | None = None
    frameworks: dict[Name, Name] = {}


class SiteRecord(Part):
    """A line of the user's source."""

    site: Count
    function: Name
    place: Place | None = None
    outline: list[Place] = []


class ModelRecord(Part):
    """A wrapped model."""

    model: Count
    engine: Name = "ddp"
    name: Name = ""
    site: int = -1
    world_size: Annotated[int, Field(ge=1, le=1_000_000)]
    parameters: Names = []
    batch_norms: Names = []
    dropouts: bool = False
    initial: Digests | None = None
    wrapped: Digests = {}


class HookRecord(Part):
    """The communication hook of a model."""

    model: Count
    hook: Annotated[str, Field(max_length=4096)]


class OptimizerRecord(Part):
    """An optimizer."""

    optimizer: Count
    name: Name = ""
    adaptive: bool = False
    site: int = -1
    elements: Count = 0
    sharded: bool = False


class UnreducedRecord(Part):
    """Parameters that no model reduces."""

    optimizer: Count
    names: Names
    count: Count


class Loss(Part):
    """One call of a loss function whose gradient arrived."""

    site: int
    reduction: Literal["mean", "sum", "none"]
    units: Number
    weighted: bool = False
    factor: Number | None = None
    least: Number | None = None
    most: Number | None = None
    dtype: Name = "float32"
    value: Number | None = None


class CellRecord(Part):
    """One backward pass."""

    model: int = -1
    forward: Span | None = None
    backward: Span
    forward_sync: bool = False
    backward_sync: bool = False
    forwards: Count = 0
    syncs: Count = 0
    sync_spans: list[Span] = []
    cleared: bool = False
    rows: Count | None = None
    place: int | None = None
    losses: list[Loss] = []


class Clip(Part):
    """A clipping of gradients."""

    site: int = -1
    before_unscale: bool = False
    after: Count = 0


class WindowRecord(Part):
    """What happened between two steps of one optimizer."""

    optimizer: Count
    step: Count
    why: Name = ""
    t: Span
    step_at: Span
    micro_batches: Count
    clip: Clip | None = None
    cells: Annotated[list[CellRecord], Field(max_length=10_000)]
    scales: list[Number | None] = []


class SkippedRecord(Part):
    """A step that a GradScaler left out."""

    optimizer: Count
    step: Count
    micro_batches: Count = 0


class DigestRecord(Part):
    """Digests that all ranks should have alike."""

    what: Literal["gradients", "parameters", "buffers"]
    optimizer: Count | None = None
    model: Count | None = None
    step: Count
    last: bool = False
    values: Digests


class TrackedRecord(Part):
    """How often the statistics of batch norms were updated."""

    model: Count
    step: Count
    forwards: Count
    values: dict[Name, int]


class StreamRecord(Part):
    """The random generators when the first forward of a model in training begins."""

    model: Count
    digest: Name


class LoaderRecord(Part):
    """A data loader."""

    loader: Count
    site: int = -1
    dataset: Name = ""
    iterable: bool = False
    length: Count | None = None
    part: Name | None = None
    own_generator: bool = False
    batch_size: Count | None = None
    drop_last: bool = False
    workers: Count = 0
    sampler: Name | None = None
    batch_sampler: Name | None = None
    replicas: Count | None = None
    sampler_rank: Count | None = None
    shuffle: bool | None = None
    sampler_drop_last: bool | None = None


class PassRecord(Part):
    """An iteration over a loader begins."""

    loader: Count
    number: Count
    epoch: int | None = None
    base_seed: int | None = None
    t: Moment


class DrawnRecord(Part):
    """An iteration over a loader ended."""

    loader: int
    number: int
    complete: bool = False
    count: Count
    batches: Count = 0
    odd: bool = False
    t: Moment
    place: Count | None = None
    kept: Count = 0


class WriteRecord(Part):
    """A file opened for writing."""

    path: Path
    function: Name
    site: int = -1


Pattern = tuple[Count, Count, Count, Count, Count, Count, Count]
"""micro-batches, reductions, forwards outside no_sync, cleared cells, windows, first step, last step"""


class OptimizerTotals(Part):
    """Counts of one optimizer."""

    steps: Count
    skipped: Count = 0
    open_cells: Count = 0
    patterns: Annotated[list[Pattern], Field(max_length=1000)] = []


class TotalsRecord(Part):
    """Counts so far."""

    last: bool = False
    t: Moment
    optimizers: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], OptimizerTotals] = {}
    counts: dict[Name, Count] = {}
    unseen: dict[Name, Count] = {}
    probe_seconds: Finite = 0.0
    off: dict[Name, Annotated[str, Field(max_length=20_000)]] = {}
    dropped: Count = 0


KINDS: dict[str, type[Part]] = {
    "rank": RankRecord,
    "site": SiteRecord,
    "model": ModelRecord,
    "hook": HookRecord,
    "optimizer": OptimizerRecord,
    "unreduced": UnreducedRecord,
    "window": WindowRecord,
    "skipped": SkippedRecord,
    "digest": DigestRecord,
    "tracked": TrackedRecord,
    "stream": StreamRecord,
    "loader": LoaderRecord,
    "pass": PassRecord,
    "drawn": DrawnRecord,
    "write": WriteRecord,
    "totals": TotalsRecord,
}
