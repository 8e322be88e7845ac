"""The numeric policy of every stage: one thread, deterministic algorithms or an error, no TF32."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch


def use_deterministic_policy() -> None:
    """One thread, deterministic algorithms or an error, no TF32: the same bits for the same inputs."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA's BLAS starts
    torch.set_num_threads(1)
    with leaving_no_cache_folder():
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


def import_policy() -> None:
    """Import what the first use of the policy imports (a second's work), and leave everything as it was."""
    with leaving_no_cache_folder():
        torch.use_deterministic_algorithms(True)
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def leaving_no_cache_folder() -> Iterator[None]:
    """Remove the empty cache folder that torch's compiler makes in the temporary folder when it is imported."""
    before = _cache_folders()
    yield
    for folder in _cache_folders() - before:
        with contextlib.suppress(OSError):  # somebody uses it by now
            folder.rmdir()


def _cache_folders() -> set[Path]:
    try:
        return set(Path(tempfile.gettempdir()).glob("torchinductor_*"))
    except OSError:
        return set()
