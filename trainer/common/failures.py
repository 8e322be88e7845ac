"""Turns failures of the machine into actionable messages."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

NONDETERMINISTIC = re.compile(r"^(?P<operator>\S+) does not have a deterministic implementation")


class OutOfMemoryError(RuntimeError):
    """A device ran out of memory; the outcome is decided by this class name."""


class NondeterministicOperatorError(RuntimeError):
    """An operator without a deterministic implementation was called under the deterministic policy."""


class WorldSizeError(RuntimeError):
    """The number of processes differs from the one the run requested."""


class DeviceMapError(RuntimeError):
    """The ranks cannot use their assigned devices."""


class GroupInitError(RuntimeError):
    """The process group could not be initialised."""


def world_size_text(expected: int, actual: int) -> str:
    """Return the message for `actual` processes instead of `expected` ones."""
    return (
        f"expected a world size of {expected}, got {actual}: start {expected} processes, "
        f"for example `torchrun --standalone --nproc-per-node {expected} ...`, or set world_size={actual}"
    )


def shared_gpu_text(devices: Mapping[int, str]) -> str:
    """Return the message for two ranks on one GPU; `devices` maps rank to device."""
    listing = ", ".join(f"rank {rank} -> {device}" for rank, device in sorted(devices.items()))
    return (
        f"two ranks share one GPU ({listing}): correct the environment (one visible GPU per rank, "
        "CUDA_VISIBLE_DEVICES) before touching the formula, or set share_gpu to run them over gloo"
    )


def group_init_text(backend: str, world_size: int, cause: BaseException) -> str:
    """Return the message for a failed process group: devices, interface, port and the cause."""
    env = os.environ.get
    return (
        f"the {backend} group of {world_size} ranks could not be initialised: {type(cause).__name__}: {cause}. "
        f"Visible GPUs: {torch.cuda.device_count()} (CUDA_VISIBLE_DEVICES={env('CUDA_VISIBLE_DEVICES', 'unset')}); "
        f"interface: GLOO_SOCKET_IFNAME={env('GLOO_SOCKET_IFNAME', 'unset')}, "
        f"NCCL_SOCKET_IFNAME={env('NCCL_SOCKET_IFNAME', 'unset')}; "
        f"address: {env('MASTER_ADDR', 'unset')}:{env('MASTER_PORT', 'unset')}. "
        f"There is no fallback from {backend}: fix the environment and start again"
    )


@contextmanager
def explained(rank: int, device: str) -> Iterator[None]:
    """Re-raise out-of-memory and non-deterministic-operator errors with advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"rank {rank} ran out of memory on {device}: {error}. Processes on the devices: {_device_processes()}. "
            "A smaller batch changes both expected counts, so runs that are compared must be started again together"
        ) from error
    except RuntimeError as error:
        match = NONDETERMINISTIC.search(str(error))
        if match is None:
            raise
        raise NondeterministicOperatorError(
            f"operator {match['operator']} is not deterministic on {device}; deterministic algorithms are required in "
            f"every mode. Full message: {error}"
        ) from error


def _device_processes() -> str:
    try:
        return "; ".join(torch.cuda.list_gpu_processes(index) for index in range(torch.cuda.device_count())) or "none"
    except Exception as error:  # needs an optional driver library; the report must work without it
        return f"unknown ({error})"
