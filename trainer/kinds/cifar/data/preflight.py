"""Checks of a data source before a run is recorded: time-limited and without torch."""

import hashlib
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainer.contract.params import FieldProblem, PreflightContext
from trainer.kinds.cifar.data.folders import DataProblem, Picture, check_header, list_folder, read_picture
from trainer.kinds.cifar.data.sources import (
    CIFAR10_FOLDER,
    CIFAR10_MD5,
    CIFAR10_TEST,
    CIFAR10_TRAIN,
    Source,
    parse_source,
)

if TYPE_CHECKING:
    from trainer.kinds.cifar.params import CifarParams

HEADER_SECONDS: Final = 20.0
"""Time limit for checking all headers, at 0.1 ms per image; a source is checked again only if it has changed."""
DECODE_SECONDS: Final = 0.5
"""Time a web request spends on decoding images; the prepare stage decodes all of them before a rank starts."""
_sound: Final[dict[Path, bytes]] = {}
"""Folder source -> digest of the files whose headers were all valid."""
CPU_FLAGS_WITH_BF16: Final = frozenset({"avx512bw", "avx512_bf16", "amx_bf16", "bf16", "avx_ne_convert"})


def preflight(params: "CifarParams", context: PreflightContext) -> list[FieldProblem]:
    """Return every reason why these parameters cannot work on this machine."""
    return [*_precision_problems(params), *_data_problems(params, context)]


def size_problems(params: "CifarParams", *, train: int, test: int) -> list[FieldProblem]:
    """Return which split sizes exceed the number of images of a source, given by `train` and `test`."""
    problems = []
    if params.train_size + params.validation_size > train:
        problems.append(
            FieldProblem(
                field="train_size",
                message=(
                    f"train_size {params.train_size} + validation_size {params.validation_size} = "
                    f"{params.train_size + params.validation_size}, but {params.data} has {train} training images; "
                    f"validation images are also taken from them"
                ),
            )
        )
    if params.test_size > test:
        problems.append(
            FieldProblem(
                field="test_size",
                message=f"test_size {params.test_size}, but {params.data} has {test} test images; use at most {test}",
            )
        )
    return problems


def check_cifar10(datasets_dir: Path) -> None:
    """Verify that the unpacked CIFAR-10 files exist and are complete.

    Raises DataProblem naming the file and the command that repairs it.
    """
    folder = Source(kind="cifar10").root(datasets_dir) / CIFAR10_FOLDER
    if not folder.is_dir():
        raise DataProblem(
            f"CIFAR-10 is not in the data sets directory (missing: {folder}); run `ddp-audit acquire cifar10` first"
        )
    for name, expected in CIFAR10_MD5.items():
        path = folder / name
        if not path.is_file():
            raise DataProblem(f"CIFAR-10 is incomplete: {path} is missing; run `ddp-audit acquire cifar10` again")
        status = path.stat()
        found = _md5(path, status.st_size, status.st_mtime_ns)
        if found != expected:
            raise DataProblem(
                f"CIFAR-10 is damaged: {path} has checksum {found}, expected {expected}; remove it and run "
                "`ddp-audit acquire cifar10` again"
            )


@lru_cache(maxsize=64)
def _md5(path: Path, _size: int, _modified: int) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _data_problems(params: "CifarParams", context: PreflightContext) -> list[FieldProblem]:
    source, datasets_dir = parse_source(params.data), context.datasets_dir
    try:
        if source.kind == "cifar10":
            check_cifar10(datasets_dir)
            return size_problems(params, train=CIFAR10_TRAIN, test=CIFAR10_TEST)
        if source.kind == "folder":
            listing = list_folder(source, datasets_dir)
            problems = size_problems(params, train=len(listing.train), test=len(listing.test))
            if not problems:
                pictures = [*listing.train, *listing.test]
                _check_headers(source.root(datasets_dir), pictures, context.max_image_pixels)
                _try_pictures(pictures, context.max_image_pixels)
            return problems
    except DataProblem as problem:
        return [FieldProblem(field="data", message=str(problem))]
    return []


def _check_headers(root: Path, pictures: Sequence[Picture], max_pixels: int) -> None:
    """Check the header of every image; a valid source is checked again only when a file has changed."""
    digest = hashlib.sha256(f"{max_pixels}".encode())
    for picture in pictures:
        digest.update(f"\0{picture.path}\0{picture.bytes}\0{picture.modified}".encode(errors="surrogateescape"))
    if _sound.get(root) == digest.digest():
        return
    deadline = time.monotonic() + HEADER_SECONDS
    for picture in pictures:
        if time.monotonic() > deadline:
            return
        check_header(picture.path, max_pixels)
    _sound[root] = digest.digest()


def _try_pictures(pictures: Sequence[Picture], max_pixels: int) -> None:
    deadline = time.monotonic() + DECODE_SECONDS
    # A stride covers all classes of a large source early; a small source is read completely.
    stride = max(1, len(pictures) // 1000)
    for start in range(stride):
        for picture in pictures[start::stride]:
            if time.monotonic() > deadline:
                return
            read_picture(picture.path, max_pixels)


def _precision_problems(params: "CifarParams") -> list[FieldProblem]:
    if params.precision != "bf16" or params.device != "cpu":
        return []
    flags = _cpu_flags()
    if not flags or flags & CPU_FLAGS_WITH_BF16:
        return []
    message = "bf16, but this CPU has no BF16 instructions (AVX-512 or newer); use precision auto or fp32"
    return [FieldProblem(field="precision", message=message)]


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.partition(":")[2].split())
