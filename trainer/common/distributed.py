"""The process group of a stage: device, determinism, `start` event, rendezvous, clean end."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from trainer.common.collectives import Collectives
from trainer.common.context import StageContext
from trainer.common.failures import (
    DeviceMapError,
    GroupInitError,
    WorldSizeError,
    explained,
    group_init_text,
    shared_gpu_text,
    world_size_text,
)
from trainer.common.policy import use_deterministic_policy
from trainer.common.process import announce
from trainer.common.telemetry import Telemetry

TIMEOUT = timedelta(minutes=30)
"""Longer than any hang limit: the supervisor locates a hang better than a timeout inside one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Collectives):
    """This rank's position among the others, and its device."""

    telemetry: Telemetry
    device: torch.device
    backend: str
    """`nccl`, `gloo`, or `none` for a single process."""


@contextmanager
def process_group(context: StageContext, *, expected_world_size: int | None = None) -> Iterator[Group]:
    """Set up this rank according to the run's configuration, yield its `Group`, destroy the group afterwards.

    Emits `start` before anything that can fail without a device. `expected_world_size` defaults to the parameter
    `world_size` for a stage with more than one process and to 1 otherwise.
    Raises WorldSizeError, DeviceMapError, GroupInitError, OutOfMemoryError, NondeterministicOperatorError.
    """
    device = _device(context)
    backend = context.config.backend if context.world_size > 1 else "none"
    announce(context.telemetry, device=str(device), backend=backend, world_size=context.world_size)
    _check_world_size(context, expected_world_size)
    _check_devices(context)
    use_deterministic_policy()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = Group(
        rank=context.rank,
        world_size=context.world_size,
        device=device,
        backend=backend,
        telemetry=context.telemetry,
    )
    if context.world_size == 1:
        with explained(0, str(device)):
            yield group
        return
    _initialise(group)
    try:
        _refuse_shared_gpus(group, share_gpu=context.params.share_gpu)
        with explained(group.rank, str(device)):
            yield group
    finally:
        if dist.is_initialized():  # code under audit may have destroyed it, which must not hide what it raised
            dist.destroy_process_group()


def _device(context: StageContext) -> torch.device:
    if context.config.device != "cuda":
        return torch.device("cpu")
    gpus = context.config.gpus or [0]
    return torch.device("cuda", gpus[context.local_rank % len(gpus)])


def _check_world_size(context: StageContext, expected: int | None) -> None:
    if expected is None:
        expected = int(context.params.world_size) if "RANK" in os.environ else 1
    if context.world_size != expected:
        raise WorldSizeError(world_size_text(expected, context.world_size))


def _check_devices(context: StageContext) -> None:
    if context.config.device != "cuda":
        return
    gpus, local_size = context.config.gpus or [0], int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not context.params.share_gpu:
        devices = {rank: f"cuda:{gpus[rank % len(gpus)]}" for rank in range(local_size)}
        if len(set(devices.values())) < local_size:
            raise DeviceMapError(shared_gpu_text(devices))
    visible, needed = torch.cuda.device_count(), max(gpus) + 1
    if visible < needed:
        raise DeviceMapError(
            f"device cuda was requested, but {visible} GPUs are visible where {needed} are needed; "
            "there is no fallback to the CPU: make the GPUs visible, or use device cpu"
        )


def _initialise(group: Group) -> None:
    choose_interface(one_node=os.environ.get("LOCAL_WORLD_SIZE") == str(group.world_size))
    # With NCCL, the small integer collectives still use gloo: they work before the first NCCL communicator exists, so
    # a wrong rank-to-device map is reported before NCCL is used, and they never wait for the GPU.
    backend = "cpu:gloo,cuda:nccl" if group.backend == "nccl" else group.backend
    group.telemetry.phase("rendezvous", 0)
    try:
        with group.telemetry.collective(f"initialise {group.backend}"):
            dist.init_process_group(backend, timeout=TIMEOUT)
    except Exception as error:
        raise GroupInitError(group_init_text(group.backend, group.world_size, error)) from error


def choose_interface(*, one_node: bool) -> None:
    """Make gloo use the loopback interface if all ranks are on one machine and no other interface is configured.

    Raises GroupInitError for an interface this machine does not have.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    known = [interface for _, interface in socket.if_nameindex()]
    if name is not None and name not in known:
        raise GroupInitError(
            f"GLOO_SOCKET_IFNAME={name!r} is not an interface of this machine ({', '.join(known)}): "
            "gloo needs exactly one interface name, not a list or an exclusion"
        )
    if name is None and one_node and "lo" in known:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def gpu_identity(device: torch.device) -> str:
    """Return a GPU's index, name and UUID: two ranks with the same UUID use the same GPU."""
    properties = torch.cuda.get_device_properties(device)
    return f"{device} {properties.name} {getattr(properties, 'uuid', '')}".strip()


def _refuse_shared_gpus(group: Group, *, share_gpu: bool) -> None:
    if group.device.type != "cuda" or share_gpu:
        return
    serial = str(getattr(torch.cuda.get_device_properties(group.device), "uuid", group.device))
    seen = (socket.gethostname(), serial, f"{socket.gethostname()} {gpu_identity(group.device)}")
    places = group.gather_objects(seen, "rank-to-device map")
    if len({place[:2] for place in places}) < len(places):
        raise DeviceMapError(shared_gpu_text({rank: place[2] for rank, place in enumerate(places)}))
