"""What the profiler reports about one accumulation window; no torch, so that the audit can read it."""

from pydantic import BaseModel, ConfigDict


class WindowEvidence(BaseModel):
    """What the profiler saw in one accumulation window of rank 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    """Optimizer steps done before the window."""
    reductions: int
    """Whole-model gradient reductions: all-reduced bytes divided by the model's gradient bytes."""
    unmatched_bytes: int
    """All-reduced bytes left over after whole gradients; anything but 0 means that the window is not judged."""
    events: int
    """All-reduce events; several per reduction when there are several buckets."""
    size: int
    """All-reduced bytes."""
    trace: str = ""
    """Name of the trace file, empty if it was not kept."""
