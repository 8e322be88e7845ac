"""A folder source for tests: `train/` and `test/` with small pictures, in classes of any names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from PIL import Image

from trainer.contract.kinds import resolve_params
from trainer.contract.params import PreflightContext
from trainer.kinds.cifar.params import KIND

NAME: Final = "mine"
COMPOSED, DECOMPOSED = "\u00c9", "E\u0301"
"""É in NFC and in NFD: they look the same."""
SIZES: Final[dict[str, Any]] = {
    "data": f"folder:{NAME}", "batch_size": 1, "accum_steps": 2, "train_size": 4, "validation_size": 2, "test_size": 2,
}  # fmt: skip


def save(path: Path, shade: int) -> None:
    """Write a picture of 40 x 30 in one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (shade, shade, shade)).save(path)


def fill(datasets: Path, train: Iterable[str], test: Iterable[str] | None = None, *, count: int = 3) -> Path:
    """Write `count` training pictures and one test picture of each class; return the folder of the source.

    The shade of a picture encodes its class: 20 times the class's index in its split, plus the picture's number.
    """
    train = list(train)
    for split, names, many in (("train", train, count), ("test", train if test is None else list(test), 1)):
        for place, name in enumerate(names):
            for number in range(many):
                save(datasets / NAME / split / name / f"{number}.png", 20 * place + number)
    return datasets / NAME


def litter(source: Path) -> None:
    """Create files that file managers, archivers and notebooks leave, next to the classes and within them."""
    for split in ("train", "test"):
        inside = next(path for path in sorted((source / split).iterdir()) if path.is_dir())
        for place in (source / split, inside):
            for name in (".DS_Store", "Thumbs.db", "thumbs.db", "desktop.ini", "._0.png"):
                (place / name).write_bytes(b"\0\0\0\1Bud1")
            for name in ("__MACOSX", ".ipynb_checkpoints", "@eaDir"):
                save(place / name / "0.png", 200)


def problems(datasets: Path, *, max_image_pixels: int = 20_000_000, **given: Any) -> dict[str, str]:
    """Return the refusals of a launch with this source, by field."""
    context = PreflightContext(datasets_dir=datasets, max_image_pixels=max_image_pixels)
    params = resolve_params(KIND, None, {**SIZES, **given})
    return {problem.field: problem.message for problem in KIND.preflight(params, context)}
