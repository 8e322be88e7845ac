"""Data sources: their names and what each of them is (no torch: web and worker read it)."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

SOURCE_PATTERN: Final = r"^(synthetic|cifar10|folder:[A-Za-z0-9][A-Za-z0-9._-]{0,99})$"

CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR10_TRAIN: Final = 50_000
CIFAR10_TEST: Final = 10_000
CIFAR10_FOLDER: Final = "cifar-10-batches-py"
CIFAR10_MD5: Final = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
"""Published checksums of the unpacked files, the same as torchvision verifies."""

SYNTHETIC_CLASSES: Final = tuple(f"pattern-{index}" for index in range(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A parsed data source."""

    kind: Literal["synthetic", "cifar10", "folder"]
    folder: str | None = None
    """Folder name in the data sets directory, for `folder`."""

    def root(self, datasets_dir: Path) -> Path:
        """Return the folder of this source in the data sets directory."""
        return datasets_dir / (self.folder or self.kind)


def parse_source(name: str) -> Source:
    """Return the source with this name.

    Raises ValueError if the name is not `synthetic`, `cifar10` or `folder:<name>`.
    """
    if name == "synthetic":
        return Source(kind="synthetic")
    if name == "cifar10":
        return Source(kind="cifar10")
    if re.fullmatch(SOURCE_PATTERN, name) and name.isprintable():
        return Source(kind="folder", folder=name.removeprefix("folder:"))
    raise ValueError(
        f"unknown data source {name!r}; use synthetic, cifar10 or folder:<name>, where <name> is a folder in the "
        "data sets directory: letters, digits, dot, dash and underscore"
    )


def describe_source(name: str) -> str:
    """Return a one-line description of the source for pages and reports."""
    source = parse_source(name)
    if source.kind == "synthetic":
        return "synthetic (generated from the seed, not photographs)"
    if source.kind == "cifar10":
        return "cifar10 (CIFAR-10, checksums verified)"
    return f"{name} (images in the operator's data sets directory)"
