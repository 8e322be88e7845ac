"""What `python -m trainer.probe` found on a machine; web and worker read it without torch."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Base of the report: unknown fields are ignored, so that an older worker reads a newer probe."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class GpuInfo(Part):
    """One visible GPU."""

    index: int
    """As torch counts the visible ones; what `RunConfig.gpus` holds."""
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    bf16: bool


class RankDevice(Part):
    """Where one rank of the trial group ended up."""

    rank: int
    device: str | None
    """`cpu`, or `cuda:i` and the GPU's name; None when the rank did not come up."""
    error: str | None = None


class EnvironmentReport(Part):
    """The machine, and how a group of `ranks_asked` ranks would run on it."""

    host: str
    operating_system: str
    python: str
    torch: str
    torchvision: str | None
    cuda_runtime: str | None
    """CUDA version torch was built for; None for a CPU build."""
    driver: str | None
    cpu: str
    cpu_count: int
    """Processors this process may use."""
    memory_bytes: int
    disk_free_bytes: int
    """Free space where the probe was told to look, else in its working directory."""
    gpus: list[GpuInfo]
    gloo: bool
    nccl: bool
    """Whether torch has the backend at all."""
    bf16_cpu: bool
    """Whether the CPU computes in BF16 rather than emulating it."""
    ranks_asked: int | None = None
    device: str | None = None
    """What the trial group ran on: `cuda` or `cpu`; None without `--ranks`."""
    backend: str | None = None
    """`nccl` or `gloo`, as above."""
    ranks: list[RankDevice] = []
    """The rank-to-device map that was really initialised."""
    shortfalls: list[str] = []
    """What stands in the way; empty when nothing does."""
