"""Paths of a mode's artifacts, and the small files among them (no torch)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.contract.files import make_folder
from trainer.contract.paths import RunPaths

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOP_CONFUSIONS = 5


@dataclass(frozen=True, slots=True)
class ModeArtifacts:
    """Paths of `artifacts/<mode>/`."""

    paths: RunPaths
    mode: str

    @property
    def root(self) -> Path:
        """The folder itself."""
        return self.paths.artifacts / self.mode

    @property
    def model(self) -> Path:
        """Weights, classes, seed."""
        return self.root / "model.pt"

    @property
    def history(self) -> Path:
        """One row per epoch."""
        return self.root / "history.json"

    @property
    def report(self) -> Path:
        """Test scores, baseline, confusions."""
        return self.root / "report.json"

    @property
    def sample(self) -> Path:
        """One test image."""
        return self.root / "sample_test.png"

    @property
    def traces(self) -> Path:
        """Profiler traces, for Perfetto or Chrome."""
        return self.root / "traces"

    @property
    def examples(self) -> Path:
        """Test images of the most frequent confusions."""
        return self.root / "examples"

    @property
    def required(self) -> list[Path]:
        """Files every mode must have."""
        return [self.model, self.history, self.report, self.sample]

    def faulty(self) -> list[str]:
        """Return which required files are missing or empty, each with its path inside the run."""
        faults = []
        for path in self.required:
            shown = path.relative_to(self.paths.root)
            if not path.is_file():
                faults.append(f"{shown} is missing")
            elif path.stat().st_size == 0:
                faults.append(f"{shown} is empty")
        return faults


def top_confusions(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the most frequent cells off the diagonal, [{true, predicted, count}]; ties in class order."""
    cells = [
        (count, true, predicted)
        for true, row in enumerate(confusion)
        for predicted, count in enumerate(row)
        if true != predicted and count > 0
    ]
    cells.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
    return [
        {"true": classes[true], "predicted": classes[predicted], "count": count}
        for count, true, predicted in cells[:TOP_CONFUSIONS]
    ]


def baseline(train_counts: Sequence[int], test_counts: Sequence[int]) -> tuple[int, float]:
    """Return the majority class of the training split (the first one on a tie) and its accuracy on the test images."""
    majority = max(range(len(train_counts)), key=lambda index: (train_counts[index], -index))
    return majority, test_counts[majority] / sum(test_counts)


def save_image(path: Path, pixels: "npt.NDArray[np.uint8]", scale: int = 1, *, within: Path) -> None:
    """Write one image (32, 32, 3) as PNG, every pixel enlarged to `scale` x `scale`; `within` is the run's folder."""
    from PIL import Image

    make_folder(path.parent, within=within)
    Image.fromarray(pixels.repeat(scale, axis=0).repeat(scale, axis=1)).save(path)
