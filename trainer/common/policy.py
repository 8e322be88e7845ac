"""The numeric policy of every stage: one thread, deterministic algorithms or an error, no TF32."""

import contextlib
import os
import tempfile
from pathlib import Path

import torch


def use_deterministic_policy() -> None:
    """One thread, deterministic algorithms or an error, no TF32: the same bits for the same inputs."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA's BLAS starts
    torch.set_num_threads(1)
    # The same switch as use_deterministic_algorithms(True), without importing the compiler to tell it as well.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


def import_compiler() -> None:
    """Import what the first optimizer or DDP of a process imports, torch's compiler, and leave nothing of it behind.

    It takes more than a second of processor time, and makes an empty cache folder in the temporary folder.
    """
    before = _cache_folders()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for folder in _cache_folders() - before:
        with contextlib.suppress(OSError):  # somebody uses it by now
            folder.rmdir()


def _cache_folders() -> set[Path]:
    try:
        return set(Path(tempfile.gettempdir()).glob("torchinductor_*"))
    except OSError:
        return set()
