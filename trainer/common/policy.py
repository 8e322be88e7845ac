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
    # The same switch as use_deterministic_algorithms(True), but without importing the compiler.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


def import_compiler() -> None:
    """Import torch's compiler, which the first optimizer or DDP of a process imports, without leaving files behind.

    It takes more than a second of CPU time, and creates an empty cache folder in the temporary folder.
    """
    before = _cache_folders()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for folder in _cache_folders() - before:
        with contextlib.suppress(OSError):  # another process already uses it
            folder.rmdir()


def _cache_folders() -> set[Path]:
    try:
        return set(Path(tempfile.gettempdir()).glob("torchinductor_*"))
    except OSError:
        return set()
