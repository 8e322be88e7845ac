"""`config.json`: everything a stage may know about its run."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainer.contract.params import MAX_IMAGE_PIXELS


class RunConfig(BaseModel):
    """Content of `config.json`, written once by the worker before the first stage starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
    run_id: int
    kind: str
    preset: str | None = None
    params: dict[str, Any]
    """Complete parameters, including preset and defaults."""
    backend: str
    """`nccl` or `gloo`, decided by the worker from `device`, `share_gpu` and the available GPUs."""
    device: str
    """`cuda` or `cpu`, decided like `backend`."""
    gpus: list[int] = []
    """Indices of the GPUs assigned to this run; rank r uses entry r, or entry r mod n with `share_gpu`."""
    datasets_dir: str
    max_image_pixels: int = MAX_IMAGE_PIXELS
    """Larger pictures of a data source are refused."""
    resume_from: str | None = None
    """Absolute path of the checkpoint this run continues, inside its own folder."""

    @classmethod
    def load(cls, path: Path) -> "RunConfig":
        """Read and validate a `config.json`. Raises OSError and pydantic.ValidationError."""
        return cls.model_validate(json.loads(path.read_text()))
