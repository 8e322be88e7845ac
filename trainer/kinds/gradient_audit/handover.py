"""Files that the stages of a gradient audit pass to each other, in the run's `work/` folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.contract.files import make_folder, write_bytes_atomically
from trainer.contract.paths import RunPaths


@dataclass(frozen=True, slots=True)
class Handover:
    """Paths and content of the files passed between the stages of one run."""

    paths: RunPaths

    @property
    def inspection(self) -> Path:
        """Names and shapes of parameters, digests and counts of all micro-batches, by `inspect`."""
        return self.paths.work / "inspection.json"

    @property
    def state(self) -> Path:
        """Rank 0's parameters and buffers before the first step, by `inspect`."""
        return self.paths.work / "state.pt"

    @property
    def facts(self) -> Path:
        """Losses, controls and the reference of the optimizer step, as numbers, by `reference`."""
        return self.paths.work / "reference.json"

    @property
    def optimizer(self) -> Path:
        """Parameters after one step of the target's optimizer in one process, by `reference`."""
        return self.paths.work / "optimizer.pt"

    def reference(self, step: int) -> Path:
        """The objective's gradient of one step, by `reference`."""
        return self.paths.work / f"reference-step{step}.pt"

    def report(self, rank: int) -> Path:
        """What one rank measured, by `audit`."""
        return self.paths.work / f"report-rank{rank}.json"

    def evidence(self, rank: int) -> Path:
        """What one rank measured for the diagnosis, by `audit`; only if something does not match."""
        return self.paths.work / f"evidence-rank{rank}.pt"

    def write(self, path: Path, document: Any) -> None:
        """Write JSON atomically. NaN is written as NaN, which Python's parser accepts; nothing else reads it."""
        write_bytes_atomically(path, json.dumps(document).encode(), within=self.paths.root)

    def save(self, path: Path, content: Any) -> None:
        """Write tensors; the next stage reads them only after this one has ended."""
        make_folder(path.parent, within=self.paths.root)
        torch.save(content, path)


def read_document(path: Path) -> Any:
    """Read JSON. Raises FileNotFoundError that names the stage's file."""
    return json.loads(path.read_text())
