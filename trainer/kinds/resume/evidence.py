"""The final state of a finished trajectory: its last checkpoint, verified and read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.common.checkpoints.content import read_part
from trainer.common.checkpoints.errors import CheckpointDamaged
from trainer.contract.manifest import Manifest, ManifestInvalid, step_directory, verify
from trainer.contract.stamp import SHARED, rank_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The final state of one trajectory."""

    name: str
    manifest: Manifest
    shared: Mapping[str, Any]
    ranks: Sequence[Mapping[str, Any]]
    """Every rank's own file, in rank order."""

    @classmethod
    def read(cls, name: str, root: Path, step: int) -> "Evidence":
        """Read the checkpoint of `step` under `root`.

        Raises CheckpointDamaged, or CheckpointRefused for state of another type or step, naming what is wrong with it.
        """
        directory = step_directory(root, step)
        try:
            manifest = verify(directory)
        except ManifestInvalid as error:
            raise CheckpointDamaged(f"trajectory {name}, {directory.name}: {error}") from None
        names = [rank_file(rank) for rank in range(manifest.header.world_size)]
        return cls(
            name=name,
            manifest=manifest,
            shared=read_part(directory, SHARED, manifest),
            ranks=[read_part(directory, item, manifest) for item in names],
        )

    @property
    def losses(self) -> Tensor:
        """Loss per token of every update, float64 [updates]; taken from rank 0; all ranks have the same."""
        losses: Tensor = self.ranks[0]["sampler"]["losses"]
        return losses

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The model's tensors by name."""
        return dict(self.shared["model"])

    @property
    def optimizer(self) -> dict[str, Tensor]:
        """Every number of optimizer and schedule, by a name that says what it belongs to."""
        names = [name for group in self.manifest.header.optimizer for name in group]
        found: dict[str, Tensor] = {}
        for index, values in self.shared["optimizer"]["state"].items():
            found.update(_numbers(f"{names[index]}.", values))
        for index, group in enumerate(self.shared["optimizer"]["param_groups"]):
            found.update(_numbers(f"group{index}.", {key: group[key] for key in group if key != "params"}))
        found.update(_numbers("scheduler.", self.shared["scheduler"] or {}))
        return found


def _numbers(prefix: str, values: Mapping[str, Any]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            found[prefix + name] = value
        elif isinstance(value, bool | int | float):
            found[prefix + name] = torch.tensor(float(value), dtype=torch.float64)
        elif isinstance(value, list) and all(isinstance(item, int | float) for item in value):
            found[prefix + name] = torch.tensor(value, dtype=torch.float64)
    return found
