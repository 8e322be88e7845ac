"""The source `folder:<name>`: `train/` and `test/` with one folder of pictures per class."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image

from trainer.contract.pixels import pixels
from trainer.kinds.cifar.data.sources import Source

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_CLASSES: Final = 500
"""A confusion matrix grows with the square; beyond this nobody reads it."""
MAX_PIXELS: Final = 20_000_000
"""Larger pictures are refused before they are decoded."""


class DataProblem(ValueError):
    """A data source that cannot be used; the text says what is wrong and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One file of a folder source."""

    path: str
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything found below a folder source, in a fixed order."""

    classes: tuple[str, ...]
    train: list[Picture]
    test: list[Picture]


def list_folder(source: Source, datasets_dir: Path) -> Listing:
    """Return the classes and pictures of a folder source, without decoding any.

    Raises DataProblem for a missing folder, too few or too many classes, classes that differ between train and test,
    an empty class or file.
    """
    root = source.root(datasets_dir)
    if not root.is_dir():
        raise DataProblem(
            f"no folder {source.folder!r} in the data sets directory; put the pictures into "
            f"{source.folder}/train/<class>/ and {source.folder}/test/<class>/ there (missing: {root})"
        )
    classes = {split: _class_names(root / split, source) for split in ("train", "test")}
    if classes["train"] != classes["test"]:
        only_train = sorted(set(classes["train"]) - set(classes["test"]))
        only_test = sorted(set(classes["test"]) - set(classes["train"]))
        raise DataProblem(
            f"the classes of {source.folder}/train and {source.folder}/test differ: only in train "
            f"{only_train or 'none'}, only in test {only_test or 'none'}; both need the same folders"
        )
    names = classes["train"]
    if not 2 <= len(names) <= MAX_CLASSES:
        raise DataProblem(f"{source.folder}/train has {len(names)} class folders; 2 to {MAX_CLASSES} can be told apart")
    return Listing(
        classes=tuple(names),
        train=[*_pictures(root / "train", names, source)],
        test=[*_pictures(root / "test", names, source)],
    )


def _class_names(split: Path, source: Source) -> list[str]:
    if not split.is_dir():
        raise DataProblem(
            f"{source.folder} has no folder {split.name}/; it needs train/ and test/, one folder per class"
        )
    return sorted(entry.name for entry in os.scandir(split) if entry.is_dir() and not entry.name.startswith("."))


def _pictures(split: Path, names: list[str], source: Source) -> Iterator[Picture]:
    for label, name in enumerate(names):
        entries = sorted(
            (entry for entry in os.scandir(split / name) if entry.is_file() and not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )
        shown = f"{source.folder}/{split.name}/{name}"
        if not entries:
            raise DataProblem(f"class folder {shown} is empty; add pictures or remove the class from train/ and test/")
        for entry in entries:
            if entry.stat().st_size == 0:
                raise DataProblem(f"{shown}/{entry.name} is an empty file; replace or remove it")
            yield Picture(path=entry.path, label=label)


def read_picture(path: str) -> "npt.NDArray[np.uint8]":
    """Return one picture as RGB of shape (32, 32, 3), the way the classifier will see any picture.

    Raises DataProblem naming the file when it is no picture, truncated or too large.
    """
    try:
        with Image.open(path) as image:
            size = image.width * image.height
            if size <= MAX_PIXELS:
                return pixels(image)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more, depending on the format
        raise DataProblem(f"{_shown(path)} cannot be read as a picture ({error}); replace or remove it") from None
    raise DataProblem(f"{_shown(path)} has {size} pixels; at most {MAX_PIXELS} are decoded, so shrink it")


def _shown(path: str) -> str:
    return "/".join(Path(path).parts[-4:])
