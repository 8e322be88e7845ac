"""Files that the stages of a token-parity run pass to each other, in the run's `work/` folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.files import write_bytes_atomically
from trainer.contract.paths import RunPaths

AUDITED = "audited"
"""The rule under audit on the planned window."""
RANK_MEAN, MEAN_OF_MEANS = "rank_mean", "mean_of_means"
"""Wrong rules on the same window: they must be rejected."""
LOCALLY_EMPTY = "locally_empty"
"""The rule under audit with every target of rank 0 ignored."""
LEFT_OVER = "left_over"
"""What the variant `stale_gradients` found in the gradients before the planned window."""
EMPTY_RANK = 0


@dataclass(frozen=True, slots=True)
class Handover:
    """Paths and JSON of the files passed between the stages of one run."""

    paths: RunPaths

    @property
    def plan(self) -> Path:
        """Window ids, token counts and data lock, by `prepare`."""
        return self.paths.work / "plan.json"

    @property
    def worked_example(self) -> Path:
        """The worked example, by `check-loss`."""
        return self.paths.work / "worked_example.json"

    @property
    def reference(self) -> Path:
        """Gradients of the single process, by `reference`."""
        return self.paths.work / "reference.pt"

    @property
    def training(self) -> Path:
        """History and evaluation, by `train`."""
        return self.paths.work / "training.json"

    def gradients(self, rank: int) -> Path:
        """One rank's gradients per window, by `distributed`."""
        return self.paths.work / f"gradients-rank{rank}.pt"

    def report(self, rank: int) -> Path:
        """What one rank counted and measured, by `distributed`."""
        return self.paths.work / f"report-rank{rank}.json"


def write_document(path: Path, document: Any) -> None:
    """Write JSON atomically. NaN is written as NaN, which Python's parser accepts; nothing else reads these files."""
    run = path.parent.parent
    write_bytes_atomically(path, json.dumps(document, indent=1).encode(), within=run)


def read_document(path: Path) -> Any:
    """Read JSON. Raises FileNotFoundError that names the stage's file."""
    return json.loads(path.read_text())
