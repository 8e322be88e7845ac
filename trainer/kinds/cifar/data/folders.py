"""The source `folder:<name>`: `train/` and `test/` with one folder of images per class."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainer.contract import pictures
from trainer.contract.leftovers import is_leftover
from trainer.contract.pictures import PictureRefused
from trainer.contract.pixels import INPUT_SIZE
from trainer.kinds.cifar.data.class_names import difference, name_problem, readable
from trainer.kinds.cifar.data.sources import Source

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_CLASSES: Final = 500
"""A confusion matrix grows quadratically and becomes unreadable beyond this."""


class DataProblem(ValueError):
    """A data source that cannot be used; the text says what is wrong and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One file of a folder source."""

    path: str
    label: int
    bytes: int
    modified: int
    """Nanoseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything found in a folder source, in a fixed order."""

    classes: tuple[str, ...]
    train: list[Picture]
    test: list[Picture]


def list_folder(source: Source, datasets_dir: Path) -> Listing:
    """Return the classes and images of a folder source without opening any image.

    Raises DataProblem for a missing or unreadable folder, too few or too many classes, classes that differ between
    train and test or look alike, an empty class or file.
    """
    root = source.root(datasets_dir)
    if not root.is_dir():
        raise DataProblem(
            f"no folder {source.folder!r} in the data sets directory; put the images into "
            f"{source.folder}/train/<class>/ and {source.folder}/test/<class>/ there (missing: {root})"
        )
    try:
        names = _classes(root, source)
        return Listing(
            classes=tuple(names),
            train=[*_pictures(root / "train", names, source)],
            test=[*_pictures(root / "test", names, source)],
        )
    except OSError as error:
        place = _shown(str(error.filename or root))
        raise DataProblem(f"{place} cannot be read ({error.strerror}); repair or remove it") from None


def _classes(root: Path, source: Source) -> list[str]:
    train, test = (_class_names(root / split, source) for split in ("train", "test"))
    differing = difference(train, test)
    if differing is not None:
        raise DataProblem(f"the classes of {source.folder}/train and {source.folder}/test differ: {differing}")
    if not 2 <= len(train) <= MAX_CLASSES:
        raise DataProblem(f"{source.folder}/train has {len(train)} class folders; it needs 2 to {MAX_CLASSES}")
    return train


def _class_names(split: Path, source: Source) -> list[str]:
    if not split.is_dir():
        raise DataProblem(
            f"{source.folder} has no folder {split.name}/; it needs train/ and test/, one folder per class"
        )
    names = [entry.name for entry in _entries(split) if entry.is_dir()]
    problem = name_problem(names)
    if problem is not None:
        raise DataProblem(f"in {source.folder}/{split.name}, {problem}")
    return names


def _pictures(split: Path, names: list[str], source: Source) -> Iterator[Picture]:
    for label, name in enumerate(names):
        entries = [entry for entry in _entries(split / name) if entry.is_file()]
        if not entries:
            raise DataProblem(
                f"class folder {source.folder}/{split.name}/{name} is empty; add images or remove the class from "
                "train/ and test/"
            )
        for entry in entries:
            status = entry.stat()
            if status.st_size == 0:
                raise DataProblem(f"{_shown(entry.path)} is an empty file; replace or remove it")
            yield Picture(path=entry.path, label=label, bytes=status.st_size, modified=status.st_mtime_ns)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder by name, without files left by other programs."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not is_leftover(entry.name)), key=lambda entry: entry.name)


def check_header(path: str, max_pixels: int) -> None:
    """Check the header of an image file without decoding it.

    Raises DataProblem naming the file if it is not an image or has more than `max_pixels` pixels.
    """
    with _named(path), open(path, "rb") as file:  # noqa: PTH123  # many, and quick
        pictures.open_picture(file, max_pixels)


def read_picture(path: str, max_pixels: int) -> "npt.NDArray[np.uint8]":
    """Return one image as RGB of shape (32, 32, 3), preprocessed as for classification.

    Raises DataProblem naming the file if it is not an image, truncated or has more than `max_pixels` pixels.
    """
    import numpy as np

    with _named(path), open(path, "rb") as file:  # noqa: PTH123  # as above
        found = pictures.read_picture(file, max_pixels)
    return np.frombuffer(found.pixels, dtype=np.uint8).reshape(INPUT_SIZE, INPUT_SIZE, 3)


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except PictureRefused as refusal:
        if refusal.code == "too_many_pixels":
            raise DataProblem(f"{_shown(path)}: {refusal}; shrink or remove it") from None
        raise DataProblem(f"{_shown(path)} cannot be read as an image ({refusal}); replace or remove it") from None
    except OSError as error:
        raise DataProblem(f"{_shown(path)} cannot be read ({error.strerror}); repair or remove it") from None


def _shown(path: str) -> str:
    return readable("/".join(Path(path).parts[-4:]))
