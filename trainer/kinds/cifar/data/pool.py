"""Images of a source before they are split: their number, and access to a selection."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.contract.params import MAX_IMAGE_PIXELS
from trainer.kinds.cifar.data.folders import DataProblem, Picture, list_folder, read_picture
from trainer.kinds.cifar.data.preflight import check_cifar10
from trainer.kinds.cifar.data.sources import CIFAR10_CLASSES, SYNTHETIC_CLASSES, Source, parse_source
from trainer.kinds.cifar.data.synthetic import synthetic_images
from trainer.kinds.cifar.params import CifarParams

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Progress = Callable[[int], None]
"""Called with the number of images decoded since the last call."""

REPORT_EVERY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The training or the test images of a source."""

    available: int
    fetch: Callable[[npt.NDArray[np.int64], Progress], tuple[Images, Labels]]
    """Ids -> images (n, 32, 32, 3) and labels (n,) in the order of the ids. Raises DataProblem naming a bad file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything a source provides."""

    classes: tuple[str, ...]
    train: Part
    test: Part


def open_pool(params: CifarParams, datasets_dir: Path, max_pixels: int = MAX_IMAGE_PIXELS) -> Pool:
    """Return the images of the run's source. Raises DataProblem if it is missing or damaged.

    Images in a folder with more than `max_pixels` pixels are rejected when they are fetched.
    """
    source = parse_source(params.data)
    if source.kind == "synthetic":
        train = synthetic_images(params.seed, 1, params.train_size + params.validation_size)
        test = synthetic_images(params.seed, 2, params.test_size)
        return Pool(classes=SYNTHETIC_CLASSES, train=_in_memory(*train), test=_in_memory(*test))
    if source.kind == "cifar10":
        return _cifar10(source, datasets_dir)
    listing = list_folder(source, datasets_dir)
    return Pool(
        classes=listing.classes, train=_on_disk(listing.train, max_pixels), test=_on_disk(listing.test, max_pixels)
    )


def _cifar10(source: Source, datasets_dir: Path) -> Pool:
    check_cifar10(datasets_dir)
    from torchvision.datasets import CIFAR10

    def load(*, train: bool) -> Part:
        try:
            data = CIFAR10(source.root(datasets_dir), train=train, download=False)
        except (RuntimeError, OSError) as error:
            raise DataProblem(f"CIFAR-10 cannot be read: {error}; run `ddp-audit acquire cifar10` again") from None
        if tuple(data.classes) != CIFAR10_CLASSES:
            raise DataProblem(f"CIFAR-10 has classes {data.classes}, expected {list(CIFAR10_CLASSES)}")
        return _in_memory(data.data, np.asarray(data.targets, dtype=np.int64))

    return Pool(classes=CIFAR10_CLASSES, train=load(train=True), test=load(train=False))


def _in_memory(images: Images, labels: Labels) -> Part:
    def fetch(ids: npt.NDArray[np.int64], progress: Progress) -> tuple[Images, Labels]:
        progress(len(ids))
        return images[ids], labels[ids]

    return Part(available=len(labels), fetch=fetch)


def _on_disk(pictures: list[Picture], max_pixels: int) -> Part:
    def fetch(ids: npt.NDArray[np.int64], progress: Progress) -> tuple[Images, Labels]:
        images = np.empty((len(ids), 32, 32, 3), dtype=np.uint8)
        for place, number in enumerate(ids):
            images[place] = read_picture(pictures[number].path, max_pixels)
            if place % REPORT_EVERY == REPORT_EVERY - 1:
                progress(REPORT_EVERY)
        progress(len(ids) % REPORT_EVERY)
        return images, np.asarray([pictures[number].label for number in ids], dtype=np.int64)

    return Part(available=len(pictures), fetch=fetch)
