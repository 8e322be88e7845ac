"""Windows put together while the script runs: micro-batches as cells, closed by the step of an optimizer.

A cell is one backward pass with the losses whose gradient arrived during it. Numbers that would make a GPU wait are
kept as tensors and read only for windows that are looked at: the first ones, then those at powers of two, and the last
one of every epoch.
"""

from __future__ import annotations

import time
from typing import Any

MOST_CELLS = 4096
"""Of one window; more are only counted."""
MOST_PATTERNS = 64
MOST_EPOCH_ENDS = 64


class Loss:
    """One call of a loss function."""

    def __init__(self, site: int, reduction: str, units: Any, value: Any, *, weighted: bool, smoothed: bool) -> None:
        self.site, self.reduction, self.units, self.value = site, reduction, units, value
        self.weighted, self.smoothed = weighted, smoothed
        self.kept: Any = None
        """Which elements count, for losses that are not reduced."""
        self.factor: Any = None
        """The gradient that arrived: how the script scaled this loss."""

    def read(self) -> dict[str, Any]:
        """Return the numbers; may wait for a GPU."""
        found: dict[str, Any] = {
            "site": self.site,
            "reduction": self.reduction,
            "units": _number(self.units),
            "weighted": self.weighted,
            "smoothed": self.smoothed,
        }
        if self.factor is not None and self.factor.numel() == 1:
            found["factor"] = _number(self.factor)
            found["dtype"] = str(self.factor.dtype).rpartition(".")[2]
        elif self.factor is not None:
            found.update(self._spread(self.factor))
        if self.value is not None:
            found["value"] = _number(self.value)
        return found

    def _spread(self, factor: Any) -> dict[str, Any]:
        """Return of an unreduced loss: the mean factor of the elements that count, the extremes, and how many count."""
        flat = factor.detach().flatten().double()
        kept = flat[self.kept.flatten()] if self.kept is not None and self.kept.numel() == flat.numel() else flat
        counted = kept[kept != 0]  # a mask multiplied into the loss takes its elements out of the objective
        dtype = str(factor.dtype)[6:]
        if counted.numel() == 0:
            return {"factor": 0.0, "least": 0.0, "most": 0.0, "units": 0, "dtype": dtype}
        numbers = [float(counted.mean()), float(counted.min()), float(counted.max())]
        return {
            "factor": numbers[0],
            "least": numbers[1],
            "most": numbers[2],
            "units": int(counted.numel()),
            "dtype": dtype,
        }


def _number(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, float)) else value.detach().item()


class Cell:
    """One backward pass."""

    def __init__(self, forward: tuple[float, float] | None, begin: float) -> None:
        self.forward, self.backward = forward, [begin, begin]
        self.losses: list[Loss] = []
        self.known: set[int] = set()
        """Their ids: a loss used twice in one backward is one loss, and there can be thousands."""
        self.models: list[int] = []
        """DDP modules whose forward led here."""
        self.optimizers: list[int] = []
        """Optimizers whose parameters received a gradient."""
        self.wanted = [True, True]
        """Whether gradients were to be synchronised at the forward, and at the backward."""
        self.syncs: dict[int, int] = {}
        """Model -> reductions of all its buckets that were completed."""
        self.sync_spans: list[list[float]] = []
        self.cleared = False
        """Whether its gradients were thrown away before the step."""
        self.rows: Any = None
        """Samples of the micro-batch, as the model was given them."""
        self.place: Any = None
        self.scale: Any = None
        self.forwards = 0

    def read(self, model: int) -> dict[str, Any]:
        """Return the cell as a record carries it."""
        return {
            "model": model,
            "forward": self.forward,
            "backward": self.backward,
            "forward_sync": self.wanted[0],
            "backward_sync": self.wanted[1],
            "forwards": self.forwards,
            "syncs": sum(self.syncs.values()) if model < 0 else self.syncs.get(model, 0),
            "sync_spans": self.sync_spans,
            "cleared": self.cleared,
            "rows": self.rows,
            "losses": [loss.read() for loss in self.losses],
            "place": self.place,
        }


class Window:
    """What happened between two steps of one optimizer."""

    def __init__(self) -> None:
        self.begin = time.time()
        self.cells: list[Cell] = []
        self.clip: Any = None
        self.overflow = 0
        """Cells beyond the most that are kept."""


class Book:
    """The windows of one optimizer."""

    def __init__(self, number: int, first: int) -> None:
        self.number, self.first = number, first
        self.steps = 0
        self.skipped = 0
        self.window = Window()
        self.patterns: dict[tuple[int, int, int, int], list[int]] = {}
        """(micro-batches, syncs, forwards outside no_sync, cleared) -> [windows, first step, last step]."""
        self.newest: Any = None
        """The newest closed window that was not looked at, still as tensors."""
        self.epoch_ends = 0

    def add(self, cell: Cell) -> None:
        """Put a cell into the open window."""
        if len(self.window.cells) < MOST_CELLS:
            self.window.cells.append(cell)
        else:
            self.window.overflow += 1

    def cleared(self) -> bool:
        """Note that the gradients were thrown away now; return whether there were any in the open window."""
        for cell in self.window.cells:
            cell.cleared = True
        return bool(self.window.cells)

    def close(self, at: list[float], *, skipped: bool) -> tuple[Window, bool]:
        """Close the open window at a step and return it, and whether it is to be looked at."""
        window, self.window = self.window, Window()
        if skipped:
            self.skipped += 1
        else:
            self.steps += 1
        key = (
            len(window.cells) + window.overflow,
            sum(sum(cell.syncs.values()) for cell in window.cells),
            sum(1 for cell in window.cells if cell.wanted[0] and not cell.wanted[1]),
            sum(1 for cell in window.cells if cell.cleared),
        )
        if key in self.patterns or len(self.patterns) < MOST_PATTERNS:
            count = self.patterns.setdefault(key, [0, self.steps, self.steps])
            count[0] += 1
            count[2] = self.steps
        looked_at = self.steps <= self.first or self.steps & (self.steps - 1) == 0
        self.newest = None if looked_at else (self.steps, window, at)
        return window, looked_at

    def at_epoch_end(self) -> Any:
        """Return (step, window, times) of the newest closed window if it is still unread, else None."""
        newest, self.newest = self.newest, None
        if newest is None or self.epoch_ends >= MOST_EPOCH_ENDS:
            return None
        self.epoch_ends += 1
        return newest
