"""The report of `python -m trainer.probe` on a machine; web and worker read it without torch."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Base of the report: unknown fields are ignored, so that an older worker can read a newer probe."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class GpuInfo(Part):
    """One visible GPU."""

    index: int
    """Index among the GPUs visible to torch, as in `RunConfig.gpus`."""
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    bf16: bool


class RankDevice(Part):
    """The device of one rank of the trial group."""

    rank: int
    device: str | None
    """`cpu`, or `cuda:i` and the GPU's name; None if the rank did not start."""
    error: str | None = None


class EnvironmentReport(Part):
    """The machine, and how a group of `ranks_asked` ranks runs on it."""

    host: str
    operating_system: str
    python: str
    torch: str
    torchvision: str | None
    cuda_runtime: str | None
    """CUDA version that torch was built for; None for a CPU build."""
    driver: str | None
    cpu: str
    cpu_count: int
    """CPUs this process may use."""
    memory_bytes: int
    disk_free_bytes: int
    """Free space in the folder given to the probe, else in its working directory."""
    gpus: list[GpuInfo]
    gloo: bool
    nccl: bool
    """Whether torch was built with the backend."""
    bf16_cpu: bool
    """Whether the CPU supports BF16 natively rather than by emulation."""
    ranks_asked: int | None = None
    device: str | None = None
    """Device of the trial group: `cuda` or `cpu`; None without `--ranks`."""
    backend: str | None = None
    """`nccl` or `gloo`, as above."""
    ranks: list[RankDevice] = []
    """The rank-to-device map that was actually initialised."""
    shortfalls: list[str] = []
    """Problems found; empty if there are none."""
