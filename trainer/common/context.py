"""The argument of a stage's entry function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.common.telemetry import Telemetry
from trainer.contract.config import RunConfig
from trainer.contract.kinds import KindSpec, kinds
from trainer.contract.params import CommonParams
from trainer.contract.paths import RunPaths


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """One rank's view of the stage it runs. Single-process stages are rank 0 of 1."""

    config: RunConfig
    kind: KindSpec
    params: Any
    """Instance of the kind's parameter class."""
    paths: RunPaths
    stage: str
    attempt: int
    """Numbered from 1; above 1 the stage continues from its newest valid checkpoint."""
    rank: int
    world_size: int
    local_rank: int
    telemetry: Telemetry
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the files that are written only once."""
        return self.rank == 0

    @property
    def datasets_dir(self) -> Path:
        """The data sets directory."""
        return Path(self.config.datasets_dir)


def load_params(config: RunConfig) -> tuple[KindSpec, CommonParams]:
    """Return the kind of a run and its parameters.

    Raises KeyError for a kind that is not installed, pydantic.ValidationError for invalid parameters.
    """
    kind = kinds()[config.kind]
    return kind, kind.params.model_validate(config.params)
