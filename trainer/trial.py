"""Starts a small group of ranks briefly, to check whether a real one would start."""

import multiprocessing
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainer.common.distributed import choose_interface, gpu_identity
from trainer.common.failures import shared_gpu_text
from trainer.contract.environment import RankDevice
from trainer.contract.placement import Ask, Offer, Place, place

SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A group to start, and afterwards its outcome."""

    ranks_asked: int
    device: str
    backend: str
    gpus: list[int] = field(default_factory=list)
    """Rank r uses entry r mod len; empty on the CPU."""
    ranks: list[RankDevice] = field(default_factory=list)
    shortfalls: list[str] = field(default_factory=list)


def choose(ranks: int, device: str, *, share_gpu: bool, visible: int | None = None, nccl: bool | None = None) -> Trial:
    """Return how `ranks` ranks would run on this machine, as `trainer.contract.placement` decides for every run."""
    visible = torch.cuda.device_count() if visible is None else visible
    nccl = dist.is_nccl_available() if nccl is None else nccl
    ask = Ask(device=device, ranks=ranks, share_gpu=share_gpu)
    placed = place(ask, Offer(gpus=tuple(range(visible)), nccl=nccl))
    if not isinstance(placed, Place):
        shortfalls = [placed.why] if placed is not None else []
        return Trial(ranks_asked=ranks, device="cuda", backend="nccl", shortfalls=shortfalls)
    gpus = list(range(min(visible, placed.gpus_most)))
    return Trial(ranks_asked=ranks, device=placed.device, backend=placed.backend, gpus=gpus)


def run_trial(trial: Trial) -> Trial:
    """Start the group and return `trial` with the rank-to-device map and what went wrong; nothing is raised."""
    if trial.ranks_asked < 1:
        return replace(trial, shortfalls=[f"{trial.ranks_asked} ranks requested; at least 1 is needed"])
    if trial.shortfalls:
        return trial
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = _collect(trial, store.port)
    shortfalls = [f"rank {rank.rank}: {rank.error}" for rank in found if rank.error is not None]
    identities = [rank.device for rank in found if rank.device is not None]
    if trial.backend == "nccl" and len(set(identities)) < len(identities):
        shortfalls.append(shared_gpu_text({rank.rank: str(rank.device) for rank in found}))
    return replace(trial, ranks=found, shortfalls=shortfalls)


def _collect(trial: Trial, port: int) -> list[RankDevice]:
    context = multiprocessing.get_context("fork")  # torch is already imported, and CUDA is not initialised yet
    members: list[tuple[Any, Connection]] = []
    for rank in range(trial.ranks_asked):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_member, args=(trial, rank, port, theirs), daemon=True)
        process.start()
        theirs.close()
        members.append((process, ours))
    deadline = time.monotonic() + SECONDS
    found = [_answer(rank, ours, deadline) for rank, (_, ours) in enumerate(members)]
    for process, _ in members:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
    return found


def _answer(rank: int, connection: Connection, deadline: float) -> RankDevice:
    try:
        if connection.poll(max(0.0, deadline - time.monotonic())):
            device, error = connection.recv()
            return RankDevice(rank=rank, device=device, error=error)
    except EOFError:
        return RankDevice(rank=rank, device=None, error="the process ended without a response")
    return RankDevice(rank=rank, device=None, error=f"no response within {SECONDS} s")


def _member(trial: Trial, rank: int, port: int, connection: Connection) -> None:
    device = None
    try:
        torch.set_num_threads(1)
        choose_interface(one_node=True)
        device, name = _device(trial, rank)
        store = TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(
            trial.backend,
            store=store,
            rank=rank,
            world_size=trial.ranks_asked,
            timeout=timedelta(seconds=SECONDS),
        )
        total = torch.ones(1, device=device)
        dist.all_reduce(total)
        error = None if total.item() == trial.ranks_asked else f"the sum over the ranks was {total.item():g}"
        dist.destroy_process_group()
        connection.send((name, error))
    except Exception as failure:
        connection.send((None if device is None else str(device), f"{type(failure).__name__}: {failure}"))


def _device(trial: Trial, rank: int) -> tuple[torch.device, str]:
    if trial.device == "cpu":
        return torch.device("cpu"), "cpu"
    device = torch.device("cuda", trial.gpus[rank % len(trial.gpus)])
    torch.cuda.set_device(device)
    return device, gpu_identity(device)
