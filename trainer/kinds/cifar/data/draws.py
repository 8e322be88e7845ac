"""What a rank draws: the ids of an epoch, and a digest that proves that two modes drew the same."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler


class EpochPlan:
    """Ids of one rank for every epoch, shuffled by seed and epoch."""

    def __init__(self, *, train_size: int, rank: int, world_size: int, seed: int) -> None:
        """`train_size` is a multiple of the world size, so the sampler does not pad with repeated ids."""
        self._sampler: DistributedSampler[int] = DistributedSampler(
            range(train_size),  # type: ignore[arg-type]  # only its length is used
            num_replicas=world_size,
            rank=rank,
            shuffle=True,
            seed=seed,
            drop_last=False,
        )

    def ids(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return this rank's ids of `epoch`, in the order they are drawn."""
        self._sampler.set_epoch(epoch)
        return np.fromiter(self._sampler, dtype=np.int64)


class DrawLog:
    """Chained digests of the ids and random views a rank has used, micro-batch by micro-batch."""

    def __init__(self, ids: str = "", views: str = "") -> None:
        self.ids, self.views = ids, views

    def add(self, ids: npt.NDArray[np.int64], views: bytes) -> None:
        """Append one micro-batch."""
        # Chained hex digests instead of a running hash: they can be stored in a checkpoint.
        self.ids = _chain(self.ids, np.ascontiguousarray(ids).tobytes())
        self.views = _chain(self.views, views)

    def as_json(self) -> dict[str, Any]:
        """Return both digests."""
        return {"ids": self.ids, "views": self.views}


def _chain(before: str, data: bytes) -> str:
    return hashlib.sha256(before.encode() + data).hexdigest()
