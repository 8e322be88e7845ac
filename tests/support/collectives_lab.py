"""Every collective among three gloo ranks, as a separate program: forks the ranks and prints their results as JSON."""

import json
import multiprocessing
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainer.common.checkpoints.errors import CheckpointError
from trainer.common.checkpoints.ranks import Ranks
from trainer.common.collectives import Collectives
from trainer.common.distributed import choose_interface
from trainer.common.process import take_standard_output

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


def main() -> None:
    """Start the ranks and print their answers."""
    output = take_standard_output()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(SIZE)]
    processes = [context.Process(target=member, args=(rank, store.port, pipes[rank][1])) for rank in range(SIZE)]
    for process in processes:
        process.start()
    json.dump([ours.recv() if ours.poll(60) else {} for ours, _ in pipes], output)
    output.close()
    for process in processes:
        process.join(60)


if __name__ == "__main__":
    main()
