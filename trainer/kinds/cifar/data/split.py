"""Assignment of images to splits: a seeded permutation, stored once and read by every rank."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from trainer.contract.files import make_folder, write_json_atomically
from trainer.contract.paths import RunPaths

SplitName = Literal["train", "validation", "test"]
SPLITS: Final[tuple[SplitName, ...]] = ("train", "validation", "test")
PLAN_RULE: Final = (
    "train and validation: consecutive parts of one permutation of the training images by PCG64(seed); "
    "test: all, or a sample by PCG64(seed) in ascending order; epochs: DistributedSampler(seed, epoch)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Indices into the training images (train, validation) and into the test images (test)."""

    train: npt.NDArray[np.int64]
    validation: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


def draw_ids(*, seed: int, train: int, validation: int, test: int, train_available: int, test_available: int) -> Ids:
    """Return the ids of every split; train and validation are disjoint.

    Raises ValueError if a source has fewer images than requested.
    """
    if train + validation > train_available or test > test_available:
        raise ValueError(
            f"{train} + {validation} training and {test} test images requested, "
            f"{train_available} and {test_available} available"
        )
    order = np.random.default_rng([seed, 0]).permutation(train_available)
    test_order = np.random.default_rng([seed, 1]).permutation(test_available)
    return Ids(train=order[:train], validation=order[train : train + validation], test=np.sort(test_order[:test]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """Description of the prepared images, stored next to them as `data.json`."""

    source: str
    """The parameter `data`."""
    classes: tuple[str, ...]
    counts: Mapping[str, list[int]]
    """Split -> images per class."""
    digest: str
    """SHA-256 of all images, labels and the plan rule: the data lock."""

    @property
    def sizes(self) -> dict[str, int]:
        """Images per split."""
        return {split: sum(counts) for split, counts in self.counts.items()}


class PreparedData:
    """The folder `work/data` of a run: `<split>_images.npy` (N, 32, 32, 3) uint8, `<split>_labels.npy` (N,) int64."""

    def __init__(self, paths: RunPaths) -> None:
        self._run, self.root = paths.root, paths.work / "data"

    def write(self, split: SplitName, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> None:
        """Store one split. Raises OSError if the disk is full."""
        make_folder(self.root, within=self._run)
        np.save(self._file(split, "images"), images)
        np.save(self._file(split, "labels"), labels)

    def seal(self, source: str, classes: tuple[str, ...]) -> DataCard:
        """Count and digest what was written, then store the card."""
        digest = hashlib.sha256(PLAN_RULE.encode())
        counts: dict[str, list[int]] = {}
        for split in SPLITS:
            images, labels = self.read(split)
            digest.update(images.data)
            digest.update(labels.data)
            counts[split] = np.bincount(labels, minlength=len(classes)).tolist()
        card = DataCard(source=source, classes=classes, counts=counts, digest=digest.hexdigest())
        document = {"source": source, "classes": list(classes), "counts": counts, "digest": card.digest}
        write_json_atomically(self.root / "data.json", document)
        return card

    def card(self) -> DataCard:
        """Read the card. Raises OSError if the prepare stage did not finish."""
        document: dict[str, Any] = json.loads((self.root / "data.json").read_text())
        return DataCard(**{**document, "classes": tuple(document["classes"])})

    def read(self, split: SplitName) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return images, memory-mapped and shared by the ranks, and labels of one split."""
        images = np.load(self._file(split, "images"), mmap_mode="r")
        return images, np.load(self._file(split, "labels"))

    def remove_images(self) -> None:
        """Free disk space when the images are no longer needed; the card is kept."""
        for split in SPLITS:
            self._file(split, "images").unlink(missing_ok=True)

    def _file(self, split: SplitName, what: str) -> Path:
        return self.root / f"{split}_{what}.npy"
