"""Collectives among real gloo processes, in the whole group and in a part of it, and alone."""

import multiprocessing
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainer.common.checkpoints.errors import CheckpointError
from trainer.common.checkpoints.ranks import Ranks
from trainer.common.collectives import Collectives
from trainer.common.distributed import choose_interface

SIZE = 3
PART = [1, 2]


def answers(rank: int) -> dict[str, Any]:
    """Return what one of `SIZE` ranks gets from every collective."""
    everyone = Collectives.of_default_group()
    pair = dist.new_group(PART)
    found = {
        "sum": everyone.sum_integers([rank, 1]),
        "max": everyone.max_integers([rank, -rank]),
        "floats": everyone.sum_floats([0.5]),
        "gathered": everyone.gather_objects(f"rank {rank}"),
        "broadcast": everyone.broadcast_object(rank, source=2),
    }
    if rank in PART:
        group = pair if isinstance(pair, dist.ProcessGroup) else None
        part = Collectives(rank=PART.index(rank), world_size=2, process_group=group)
        found |= {
            "part gathered": part.gather_objects(rank),
            "part broadcast": [part.broadcast_object(rank, source=source) for source in range(2)],
        }
    try:
        Ranks.of_default_group().together("look", lambda: 1 // (rank - 1))
    except CheckpointError as error:
        found["failure"] = str(error)
    return found


def member(rank: int, port: int, connection: Connection) -> None:
    choose_interface(one_node=True)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
    try:
        connection.send(answers(rank))
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(SIZE)]
    processes = [context.Process(target=member, args=(rank, store.port, pipes[rank][1])) for rank in range(SIZE)]
    for process in processes:
        process.start()
    results = [ours.recv() if ours.poll(60) else {} for ours, _ in pipes]
    for process in processes:
        process.join(60)
    return results


def test_every_rank_gets_the_same(found: list[dict[str, Any]]) -> None:
    common = {
        "sum": [3, 3],
        "max": [2, 0],
        "floats": [1.5],
        "gathered": ["rank 0", "rank 1", "rank 2"],
        "broadcast": 2,
    }
    assert [{name: rank.get(name) for name in common} for rank in found] == [common] * SIZE


def test_part_counts_its_own_ranks(found: list[dict[str, Any]]) -> None:
    assert "part gathered" not in found[0]
    for rank in PART:
        assert (found[rank]["part gathered"], found[rank]["part broadcast"]) == ([1, 2], [1, 2])


def test_failure_of_one_is_everybodys(found: list[dict[str, Any]]) -> None:
    assert [rank["failure"] for rank in found] == ["rank 1: ZeroDivisionError: integer division or modulo by zero"] * 3


def test_single_rank_talks_to_itself() -> None:
    alone = Collectives.of_default_group()
    assert (alone.rank, alone.world_size) == (0, 1)
    assert (alone.sum_integers([4]), alone.gather_objects("a"), alone.broadcast_object("b")) == ([4], ["a"], "b")
